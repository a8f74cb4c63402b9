//! Network namespaces by their tags: options may name a tag of `network_namespaces`, or a namespace itself.

use culvert_config::Tagged;
use culvert_config::options::inbound::InboundKind;
use culvert_config::options::listen::ListenOptions;
use culvert_config::options::namespace::NamespaceKind;
use culvert_config::value::NamespaceTag;

use super::BuildErrors;

/// Notes the kinds that are not built yet.
pub(super) fn check(namespaces: &[Tagged<NamespaceKind>], errors: &mut BuildErrors) {
    for (index, one) in namespaces.iter().enumerate() {
        if let NamespaceKind::Unshare(_) = one.kind {
            errors.not_built(format!(
                "network namespace type `unshare` (network_namespaces[{index}] \"{}\")",
                one.tag
            ));
        }
    }
}

/// Puts the path in the place of a tag; a name or path of a namespace stays as it is.
pub(crate) fn resolve(netns: &mut NamespaceTag, namespaces: &[Tagged<NamespaceKind>]) {
    let tagged = namespaces.iter().find(|one| one.tag == netns.as_str());
    if let Some(NamespaceKind::Existing(existing)) = tagged.map(|one| &one.kind) {
        netns.0.clone_from(&existing.path);
    }
}

/// The same in the listen fields of an inbound.
pub(super) fn resolve_inbound(kind: &mut InboundKind, namespaces: &[Tagged<NamespaceKind>]) {
    match kind {
        InboundKind::Tun(options) => resolve(&mut options.netns, namespaces),
        kind => {
            if let Some(listen) = listen_fields(kind) {
                resolve(&mut listen.netns, namespaces);
            }
        }
    }
}

/// The listen fields of an inbound that has some and an engine.
pub(super) fn listen_fields(kind: &mut InboundKind) -> Option<&mut ListenOptions> {
    Some(match kind {
        InboundKind::Direct(options) => &mut options.listen,
        InboundKind::Mixed(options) => &mut options.listen,
        InboundKind::Socks(options) => &mut options.listen,
        InboundKind::Http(options) => &mut options.listen,
        InboundKind::Shadowsocks(options) => &mut options.listen,
        InboundKind::Vmess(options) => &mut options.listen,
        InboundKind::Vless(options) => &mut options.listen,
        InboundKind::Trojan(options) => &mut options.listen,
        InboundKind::Hysteria(options) => &mut options.listen,
        InboundKind::Hysteria2(options) => &mut options.listen,
        InboundKind::Tuic(options) => &mut options.listen,
        InboundKind::ShadowTls(options) => &mut options.listen,
        InboundKind::AnyTls(options) => &mut options.listen,
        InboundKind::Redirect(options) => &mut options.listen,
        InboundKind::Tproxy(options) => &mut options.listen,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use culvert_config::options::namespace::ExistingNamespace;

    use super::*;

    #[test]
    fn a_tag_becomes_its_path_and_a_name_stays() {
        let path = "/run/netns/blue".to_owned();
        let kind = NamespaceKind::Existing(Box::new(ExistingNamespace { path: path.clone() }));
        let namespaces = [Tagged { tag: "work".to_owned(), kind }];
        let resolved = |text: &str| {
            let mut netns = NamespaceTag(text.to_owned());
            resolve(&mut netns, &namespaces);
            netns.0
        };
        assert_eq!(resolved("work"), path);
        assert_eq!(resolved("blue"), "blue");
        assert_eq!(resolved(""), "");
    }
}
