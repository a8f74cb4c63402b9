//! From the options of a configuration to settings.

use culvert_config::options::http_client::{HttpClientOptions, HttpEngine, HttpVersion};
use culvert_config::options::tls::OutboundTls;
use culvert_config::value::MemorySize;
use culvert_tls::ClientSettings;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::error::OptionsError;
use crate::settings::{Settings, Version};

/// The settings that the options describe; the dial fields among them are the caller's to make a dialer of.
///
/// # Errors
/// An option that is not built yet, or a value that means nothing.
pub fn settings(options: &HttpClientOptions) -> Result<Settings, OptionsError> {
    let limits = &options.quic.common;
    let unbuilt = [
        ("engine", options.engine.get().is_some_and(|engine| engine != HttpEngine::Own)),
        ("version 3", options.version == HttpVersion::V3),
        ("max_concurrent_streams", limits.max_concurrent_streams != 0),
    ];
    if let Some((option, _)) = unbuilt.into_iter().find(|(_, used)| *used) {
        return Err(OptionsError::NotBuilt { option });
    }
    let (headers, host) = headers(options)?;
    Ok(Settings {
        version: if options.version == HttpVersion::V1 { Version::Http1 } else { Version::Http2 },
        strict_version: options.disable_version_fallback,
        headers,
        host,
        tls: options.tls.as_deref().map_or_else(|| Ok(ClientSettings::default()), tls)?,
        idle_timeout: limits.idle_timeout.get(),
        keep_alive: limits.keep_alive_period.get(),
        stream_window: window("stream_receive_window", limits.stream_receive_window.as_ref())?,
        connection_window: window("connection_receive_window", limits.connection_receive_window.as_ref())?,
    })
}

/// Whether servers are spoken to by TLS is for their URLs to say, so `enabled` does not count.
fn tls(options: &OutboundTls) -> Result<ClientSettings, OptionsError> {
    Ok(culvert_tls::options::client(options)?)
}

/// The headers, and among them the host that is asked for.
fn headers(options: &HttpClientOptions) -> Result<(HeaderMap, Option<HeaderValue>), OptionsError> {
    let invalid = |name: &str| OptionsError::Invalid {
        option: "headers",
        reason: format!("{name:?} or its value cannot stand in a request"),
    };
    let mut headers = HeaderMap::new();
    for (name, values) in options.headers.0.iter() {
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(name))?;
        for value in values {
            headers.append(&key, HeaderValue::from_str(value).map_err(|_| invalid(name))?);
        }
    }
    let host = headers.remove(header::HOST);
    Ok((headers, host))
}

/// HTTP/2 counts windows in 31 bits.
fn window(option: &'static str, size: Option<&MemorySize>) -> Result<Option<u32>, OptionsError> {
    let Some(size) = size.filter(|size| size.bytes > 0) else { return Ok(None) };
    match u32::try_from(size.bytes) {
        Ok(bytes) if bytes <= i32::MAX as u32 => Ok(Some(bytes)),
        _ => Err(OptionsError::Invalid { option, reason: "a window is smaller than 2 GiB".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use culvert_tls::settings::Trust;

    use super::*;

    fn client(text: &str) -> HttpClientOptions {
        let text = format!(r#"{{"http_clients": [{{"tag": "c", {text}}}]}}"#);
        let loaded = culvert_config::load(&[culvert_config::Source::new("test", text.as_bytes())]).unwrap();
        loaded.options.http_clients[0].options.clone()
    }

    #[test]
    fn options_become_settings() {
        let text = r#""version": 2, "headers": {"Host": "a.test", "X-Key": ["1", "2"]}, "tls": {"insecure": true},
            "idle_timeout": "10s", "keep_alive_period": "5s", "stream_receive_window": "1 MB""#;
        let settings = settings(&client(text)).unwrap();
        assert_eq!(settings.version, Version::Http2);
        assert_eq!(settings.host.unwrap(), "a.test");
        assert_eq!(settings.headers.get_all("x-key").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert!(matches!(settings.tls.trust, Trust::Anyone));
        assert_eq!(settings.idle_timeout, Some(Duration::from_secs(10)));
        assert_eq!(settings.keep_alive, Some(Duration::from_secs(5)));
        assert!(settings.stream_window.is_some_and(|window| window >= 1_000_000));
        assert_eq!(settings.connection_window, None);
    }

    #[test]
    fn what_is_not_built_or_means_nothing_is_named() {
        for (text, reason) in [
            (r#""version": 3"#, "version 3 is not built yet"),
            (r#""max_concurrent_streams": 7"#, "max_concurrent_streams is not built yet"),
            (r#""headers": {"a b": "c"}"#, r#"headers: "a b" or its value cannot stand in a request"#),
        ] {
            assert_eq!(settings(&client(text)).unwrap_err().to_string(), reason);
        }
    }
}
