//! Who may do what: bearer tokens with scopes.

use axum::http::{HeaderMap, Method, header};
use sha2::{Digest, Sha256};

use super::errors::{ApiError, Code};

/// What a token allows. Each route asks for one of them, `/health` and
/// `/ready` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Use the model and see what there is.
    Generate,
    /// Upload and remove plugins.
    Upload,
    /// Everything, and what concerns the server itself.
    Admin,
}

impl Scope {
    const ALL: [Self; 3] = [Self::Generate, Self::Upload, Self::Admin];

    fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Upload => "upload",
            Self::Admin => "admin",
        }
    }

    /// The scope that a request needs.
    fn of(method: &Method, path: &str) -> Option<Self> {
        match path {
            "/health" | "/ready" => None,
            "/metrics" => Some(Self::Admin),
            // HEAD is answered as GET is, without the body.
            _ if path.starts_with("/v1/plugins")
                && ![Method::GET, Method::HEAD].contains(method) =>
            {
                Some(Self::Upload)
            }
            _ => Some(Self::Generate),
        }
    }
}

/// A token, known by its hash: the secret itself is not kept.
#[derive(Clone, Debug)]
struct Token {
    name: String,
    scopes: Vec<Scope>,
    digest: [u8; 32],
}

/// Who may do what.
#[derive(Clone, Debug)]
pub struct Access {
    /// None: everybody may do everything but what is closed.
    tokens: Vec<Token>,
    /// Whether nobody may upload.
    uploads_closed: bool,
}

/// The one who sent a request, by the name of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub Option<String>);

/// A tokens file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TokensError {
    pub line: usize,
    pub message: String,
}

/// Shortest secret: shorter ones can be guessed.
const MIN_SECRET_BYTES: usize = 16;

impl Access {
    /// Everything for everybody, but for uploads where they are `closed`: a
    /// server that other machines can reach must know whose code it runs.
    pub fn without_tokens(uploads_closed: bool) -> Self {
        Self {
            tokens: Vec::new(),
            uploads_closed,
        }
    }

    /// Reads tokens, one a line: a name, its scopes with commas between, and
    /// the secret. Empty lines and lines that begin with `#` say nothing.
    ///
    /// # Errors
    /// The first line that is no token, or a text without one.
    pub fn from_tokens(text: &str) -> Result<Self, TokensError> {
        let mut tokens: Vec<Token> = Vec::new();
        for (line, content) in (1..).zip(text.lines().map(str::trim)) {
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            let token = Token::read(content).map_err(|message| TokensError { line, message })?;
            if tokens.iter().any(|other| other.name == token.name) {
                let message = format!("the name `{}` stands there twice", token.name);
                return Err(TokensError { line, message });
            }
            tokens.push(token);
        }
        if tokens.is_empty() {
            let message = "there is no token in the file".to_owned();
            return Err(TokensError { line: 1, message });
        }
        Ok(Self {
            tokens,
            uploads_closed: false,
        })
    }

    /// Whether requests need a token.
    pub(super) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Whether anyone may do this who only reaches the server, and a page could
    /// make any browser do it.
    pub(super) fn is_open(&self, method: &Method, path: &str) -> bool {
        self.tokens.is_empty() && Scope::of(method, path).is_some()
    }

    /// Lets a request pass or says why not.
    pub(super) fn check(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Caller, ApiError> {
        let Some(scope) = Scope::of(method, path) else {
            return Ok(Caller(None));
        };
        if self.tokens.is_empty() {
            if self.uploads_closed && scope == Scope::Upload {
                let message = "uploads are off: this server listens beyond its own machine and \
                               has no tokens; start it with --tokens";
                return Err(ApiError::new(Code::Forbidden, message));
            }
            return Ok(Caller(None));
        }
        let secret = bearer(headers).ok_or_else(|| {
            let message = "this server needs a token: send `authorization: Bearer …`";
            ApiError::new(Code::Unauthorized, message)
        })?;
        let token = self
            .find(secret)
            .ok_or_else(|| ApiError::new(Code::Unauthorized, "the server knows no such token"))?;
        if token.scopes.contains(&scope) || token.scopes.contains(&Scope::Admin) {
            return Ok(Caller(Some(token.name.clone())));
        }
        let message = format!(
            "the token `{}` has not the scope `{}` that {method} {path} needs",
            token.name,
            scope.name()
        );
        Err(ApiError::new(Code::Forbidden, message))
    }

    /// Compares hashes, of which a stranger cannot choose the beginning, and
    /// all of them: the time says nothing about a secret.
    fn find(&self, secret: &str) -> Option<&Token> {
        let digest: [u8; 32] = Sha256::digest(secret).into();
        let mut found = None;
        for token in &self.tokens {
            let difference = token
                .digest
                .iter()
                .zip(digest)
                .fold(0, |all, (a, b)| all | (a ^ b));
            if difference == 0 {
                found = Some(token);
            }
        }
        found
    }
}

impl Token {
    fn read(line: &str) -> Result<Self, String> {
        let parts: Vec<_> = line.split_whitespace().collect();
        let [name, scopes, secret] = parts[..] else {
            return Err("a token is a name, its scopes and a secret".into());
        };
        let scopes = scopes
            .split(',')
            .map(|scope| {
                let known = Scope::ALL.into_iter().find(|known| known.name() == scope);
                known.ok_or_else(|| {
                    format!("there is no scope `{scope}`; there are generate, upload and admin")
                })
            })
            .collect::<Result<_, _>>()?;
        if secret.len() < MIN_SECRET_BYTES {
            return Err(format!(
                "the secret of `{name}` has {} bytes; it must have at least {MIN_SECRET_BYTES}",
                secret.len()
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            scopes,
            digest: Sha256::digest(secret).into(),
        })
    }
}

/// The token that a request carries.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, secret) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TOKENS: &str = "
        # who  may             with
        ann    generate        aaaaaaaaaaaaaaaa
        bob    generate,upload bbbbbbbbbbbbbbbb
        root   admin           cccccccccccccccc
    ";

    fn check(access: &Access, method: &Method, path: &str, token: Option<&str>) -> &'static str {
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            headers.insert(header::AUTHORIZATION, token.parse().unwrap());
        }
        match access.check(method, path, &headers) {
            Ok(_) => "ok",
            Err(error) => error.code.name(),
        }
    }

    #[test]
    fn a_scope_lets_through_what_it_names() {
        let access = Access::from_tokens(TOKENS).unwrap();
        let (get, post, put) = (Method::GET, Method::POST, Method::PUT);
        let of = |letter: &str| format!("Bearer {}", letter.repeat(16));
        let (ann, bob, root) = (of("a"), of("b"), of("c"));
        for (method, path, token, expected) in [
            (&get, "/health", None, "ok"),
            (&get, "/ready", None, "ok"),
            (&post, "/v1/completions", None, "unauthorized"),
            (
                &post,
                "/v1/completions",
                Some("Bearer nobody"),
                "unauthorized",
            ),
            (
                &post,
                "/v1/completions",
                Some("Basic aaaaaaaaaaaaaaaa"),
                "unauthorized",
            ),
            (&post, "/v1/completions", Some(&ann[..]), "ok"),
            (
                &post,
                "/v1/completions",
                Some("bearer aaaaaaaaaaaaaaaa"),
                "ok",
            ),
            (&get, "/v1/plugins", Some(&ann), "ok"),
            (&Method::HEAD, "/v1/plugins", Some(&ann), "ok"),
            (&put, "/v1/plugins", Some(&ann), "forbidden"),
            (&Method::DELETE, "/v1/plugins/x", Some(&ann), "forbidden"),
            (&put, "/v1/plugins", Some(&bob), "ok"),
            (&get, "/metrics", Some(&bob), "forbidden"),
            (&get, "/metrics", Some(&root), "ok"),
            (&put, "/v1/plugins", Some(&root), "ok"),
        ] {
            assert_eq!(
                check(&access, method, path, token),
                expected,
                "{path} {token:?}"
            );
        }
    }

    #[test]
    fn without_tokens_only_uploads_may_be_closed() {
        for (closed, upload) in [(false, "ok"), (true, "forbidden")] {
            let access = Access::without_tokens(closed);
            assert_eq!(check(&access, &Method::PUT, "/v1/plugins", None), upload);
            assert_eq!(check(&access, &Method::POST, "/v1/completions", None), "ok");
            // Clients send a key whether it is needed or not.
            let key = Some("Bearer anything");
            assert_eq!(check(&access, &Method::GET, "/v1/models", key), "ok");
        }
    }

    #[test]
    fn a_line_that_is_no_token_is_named() {
        for (text, line, words) in [
            ("", 1, "no token"),
            ("# nothing", 1, "no token"),
            ("\nann generate", 2, "a secret"),
            ("ann all aaaaaaaaaaaaaaaa", 1, "`all`"),
            ("ann upload short", 1, "5 bytes"),
            (
                "a admin aaaaaaaaaaaaaaaa\na admin bbbbbbbbbbbbbbbb",
                2,
                "twice",
            ),
        ] {
            let error = Access::from_tokens(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.message.contains(words), "{}", error.message);
            assert!(!error.message.contains("aaaa"), "no secret in a message");
        }
    }
}
