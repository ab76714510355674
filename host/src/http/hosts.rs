//! Which pages may speak to a server without tokens: those of its own address.
//!
//! A browser sends requests of any page to any address that its machine can
//! reach, this machine's included. With tokens that is of no use to the page;
//! without them the names that browsers send along are all there is to go by.

use std::net::IpAddr;
use std::str::FromStr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use serde_json::Value;

use super::errors::{ApiError, Code, shown};
use super::web::Origin;

/// A name by which the server is spoken to, without a port, or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Any,
    One(String),
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "*" => Ok(Self::Any),
            // The port is not looked at, so one here would never match.
            name if name.is_empty() || name.contains([':', '/']) => {
                Err("a host is `*`, or a name without scheme and port".into())
            }
            name => Ok(Self::One(name.to_owned())),
        }
    }
}

/// Lets a request pass unless a page of somewhere else may have sent it: one
/// whose name has come to mean this server's address, or one that has a browser
/// send what needs no leave.
pub(super) fn check(
    uri: &Uri,
    headers: &HeaderMap,
    hosts: &[Host],
    origins: &[Origin],
) -> Result<(), ApiError> {
    // Browsers always say it; what says nothing is none.
    let said = headers.get_all(header::HOST);
    let target = uri.authority().map(Authority::as_str);
    let names = said.iter().map(text).chain(target.map(str::to_owned));
    for name in names {
        if !is_own(&name, hosts) {
            let message = format!(
                "the request's `host` is {}, which is neither an address nor localhost, --host \
                 or --allowed-host: without tokens it could come from any page in a browser. \
                 Start the server with --allowed-host or --tokens",
                shown(&name.into())
            );
            return Err(ApiError::new(Code::Forbidden, message));
        }
    }
    for origin in headers.get_all(header::ORIGIN) {
        let page = text(origin);
        let page = page.split_once("://").map_or(&page[..], |(_, host)| host);
        let is_same = said
            .iter()
            .any(|host| text(host).eq_ignore_ascii_case(page));
        if !is_same && !origins.iter().any(|known| known.is(origin)) {
            let message = format!(
                "the request comes from a page of {}: without tokens only pages of --cors-origin \
                 may speak to this server. Start it with that or with --tokens",
                shown(&Value::from(text(origin)))
            );
            return Err(ApiError::new(Code::Forbidden, message));
        }
    }
    Ok(())
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// Whether no page can have made this name mean the server by its own doing.
fn is_own(name: &str, hosts: &[Host]) -> bool {
    if hosts.contains(&Host::Any) {
        return true;
    }
    let Ok(authority) = name.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts
            .iter()
            .any(|host| matches!(host, Host::One(own) if own.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Whether a request with this `host` and `origin` passes.
    fn passes(host: &str, origin: Option<&str>) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        let hosts = [Host::One("gpu.example".into())];
        let origins = ["https://chat.example".parse().unwrap()];
        let checked = check(&Uri::from_static("/"), &headers, &hosts, &origins);
        if let Err(error) = &checked {
            assert_eq!(error.code, Code::Forbidden);
            assert!(error.message.contains("--tokens"), "{error}");
        }
        checked.is_ok()
    }

    #[test]
    fn addresses_and_names_of_ones_own_pass() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "10.1.2.3:80",
            "localhost",
            "LOCALHOST:8080",
            "gpu.example:8080",
            "GPU.example",
        ] {
            assert!(passes(host, None), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.example@localhost.",
            "gpu.example.evil.example",
            "",
            "a b",
        ] {
            assert!(!passes(host, None), "{host}");
        }
        let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("a.example"))]);
        let uri = Uri::from_static("/");
        assert!(check(&uri, &headers, &[Host::Any], &[]).is_ok());
        let uri = Uri::from_static("http://evil.example/");
        assert!(check(&uri, &HeaderMap::new(), &[], &[]).is_err());
        assert!(check(&Uri::from_static("/"), &HeaderMap::new(), &[], &[]).is_ok());
    }

    #[test]
    fn what_no_host_is_called_is_refused() {
        assert_eq!("*".parse(), Ok(Host::Any));
        assert_eq!("a.example".parse(), Ok(Host::One("a.example".into())));
        for text in ["", "a.example:80", "http://a.example"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
    }

    #[test]
    fn pages_pass_where_they_are_of_the_server_or_named() {
        let host = "127.0.0.1:8080";
        for origin in ["http://127.0.0.1:8080", "https://chat.example"] {
            assert!(passes(host, Some(origin)), "{origin}");
        }
        for origin in [
            "http://127.0.0.1:3000",
            "http://chat.example",
            "https://evil.example",
            "null",
        ] {
            assert!(!passes(host, Some(origin)), "{origin}");
        }
    }
}
