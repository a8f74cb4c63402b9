//! curl through every kind of proxy, as users run it.

use crate::proxy::Proxy;
use crate::site::USER;
use crate::{Side, run};
use culvert_testkit::http::HttpOrigin;
use culvert_testkit::peer::Program;
use culvert_testkit::temp::TempDir;
use culvert_testkit::{Result, ensure, pattern};
use serde_json::json;

#[test]
fn culvert_serves_curl() {
    run(serves_curl(Side::Culvert));
}

#[test]
fn sing_box_serves_curl() {
    run(serves_curl(Side::SingBox));
}

#[test]
fn culvert_serves_curl_with_a_password() {
    run(serves_curl_with_a_password(Side::Culvert));
}

#[test]
fn sing_box_serves_curl_with_a_password() {
    run(serves_curl_with_a_password(Side::SingBox));
}

async fn serves_curl(side: Side) -> Result {
    let Some(program) = side.program() else { return Ok(()) };
    let (origin, proxy) = (HttpOrigin::start().await?, Proxy::plain(&program, "mixed").await?);
    let port = origin.port().number();
    let (v4, v6, name) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://[::1]:{port}"),
        format!("http://localhost:{port}"),
    );
    let by = |scheme: &str| ["-x".to_owned(), format!("{scheme}://{}", proxy.address())];

    // Each kind of proxy, with the targets that it can name.
    let all: &[&str] = &[&v4, &v6, &name];
    for (scheme, targets) in
        [("http", all), ("socks5h", all), ("socks5", all), ("socks4a", &[&v4, &name]), ("socks4", &[&v4])]
    {
        for target in targets {
            let answer = curl(&by(scheme), &[&format!("{target}/hello")]).await?;
            ensure!(answer.status == "200" && answer.body == b"hello", "{scheme} to {target}: {answer:?}");
        }
    }

    let big = pattern::bytes(0, 5_000_000);
    for proxy in
        [by("http").to_vec(), by("socks5h").to_vec(), [by("http").to_vec(), vec!["-p".into()]].concat()]
    {
        for path in ["bytes/5000000", "chunked/5000000", "close/5000000"] {
            if path == "close/5000000" && proxy == by("http") && side == Side::SingBox {
                // It promises to keep a connection that only its end can end the body.
                continue;
            }
            let answer = curl(&proxy, &[&format!("{v4}/{path}")]).await?;
            ensure!(
                answer.body == big,
                "{proxy:?} {path}: {} bytes, status {}",
                answer.body.len(),
                answer.status
            );
        }
        let answer = curl(&proxy, &["--http1.0", &format!("{v4}/bytes/5000000")]).await?;
        ensure!(answer.body == big, "{proxy:?} HTTP/1.0: {} bytes", answer.body.len());

        let upload = ["-H", "Expect: 100-continue", "--data-binary", "@upload", "--expect100-timeout", "15"];
        for (path, extra) in
            [("echo", None), ("continue-late", None), ("echo", Some("Transfer-Encoding: chunked"))]
        {
            let (extra, url) = (extra.map(|header| ["-H", header]), format!("{v4}/{path}"));
            let arguments: Vec<_> =
                upload.into_iter().chain(extra.into_iter().flatten()).chain([&*url]).collect();
            let answer = curl(&proxy, &arguments).await?;
            ensure!(answer.body == upload_body(), "{proxy:?} {arguments:?}: {} bytes", answer.body.len());
        }

        let answer = curl(&proxy, &["-I", &format!("{v4}/bytes/5000000")]).await?;
        ensure!(answer.status == "200", "{proxy:?} HEAD: {answer:?}");
        let answer = curl(&proxy, &[&format!("{v4}/nothing")]).await?;
        ensure!(answer.status == "204" && answer.body.is_empty(), "{proxy:?} 204: {answer:?}");
        let answer = curl(&proxy, &["-L", &format!("{v4}/redirect?{name}/redirect?{v6}/hello")]).await?;
        ensure!(answer.status == "200" && answer.body == b"hello", "{proxy:?} redirects: {answer:?}");
        let answer = curl(&proxy, &[&format!("{v4}/early")]).await?;
        ensure!(answer.status == "200" && answer.body == b"after the hints", "{proxy:?} 103: {answer:?}");
    }
    Ok(())
}

async fn serves_curl_with_a_password(side: Side) -> Result {
    let Some(program) = side.program() else { return Ok(()) };
    let origin = HttpOrigin::start().await?;
    let (name, password) = USER;
    let inbound = json!({ "type": "mixed", "users": [{ "username": name, "password": password }] });
    let proxy = Proxy::start(&program, inbound, json!({ "type": "direct" })).await?;
    let url = origin.url("/hello");
    for scheme in ["http", "socks5h", "socks5"] {
        for tunnel in [&[][..], &["-p"]] {
            let by = ["-x".to_owned(), format!("{scheme}://{}", proxy.address())];
            let login = |user: String| {
                [
                    &["--proxy-user".to_owned(), user][..],
                    &by,
                    &tunnel.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ]
                .concat()
            };
            let answer = curl(&login(format!("{name}:{password}")), &[&url]).await?;
            ensure!(answer.body == b"hello", "{scheme} {tunnel:?}: {answer:?}");
            for wrong in [format!("{name}:wrong"), format!("nobody:{password}")] {
                let answer = curl(&login(wrong), &[&url]).await;
                let refused =
                    answer.as_ref().is_err() || answer.as_ref().is_ok_and(|answer| answer.status == "407");
                ensure!(refused, "{scheme} {tunnel:?} with wrong credentials: {answer:?}");
            }
            let answer = curl(&by, &[&url]).await;
            let refused =
                answer.as_ref().is_err() || answer.as_ref().is_ok_and(|answer| answer.status == "407");
            ensure!(refused, "{scheme} without credentials: {answer:?}");
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Answer {
    status: String,
    body: Vec<u8>,
}

/// What curl uploads with `@upload`.
fn upload_body() -> Vec<u8> {
    pattern::bytes(9, 300_000)
}

/// Runs curl; an error is curl's own.
async fn curl(proxy: &[String], arguments: &[&str]) -> Result<Answer> {
    let directory = TempDir::new()?;
    directory.write("upload", upload_body())?;
    // -q keeps the user's settings out, --noproxy the environment's.
    let fixed = ["-q", "-sS", "-m", "20", "--noproxy", "", "-o", "body", "-w", "%{http_code}"];
    let all = fixed.into_iter().chain(proxy.iter().map(String::as_str)).chain(arguments.iter().copied());
    let finished = Program::named("curl").launch(all).directory(directory.path()).run().await?;
    ensure!(finished.code == Some(0), "curl {proxy:?} {arguments:?}: {}", finished.stderr);
    let body = std::fs::read(directory.path().join("body")).unwrap_or_default();
    Ok(Answer { status: finished.stdout.trim().to_owned(), body })
}
