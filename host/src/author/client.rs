//! `sluice plugin push`, `list`, `show`, `remove`: what a running server has.

use std::error::Error;
use std::path::PathBuf;

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, header};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::{AuthorError, SLOW_BYTES, read};

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Which server.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerArgs {
    /// Where the server listens
    #[arg(
        long,
        env = "SLUICE_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub server: String,
    /// The secret of a token, if the server asks for one
    #[arg(
        long,
        env = "SLUICE_TOKEN",
        hide_env_values = true,
        value_name = "SECRET"
    )]
    pub token: Option<String>,
}

/// What is uploaded.
#[derive(Debug, clap::Args)]
pub struct PushArgs {
    /// A component, or a core module that carries its component type
    pub file: PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// How the list is shown.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print the server's answer instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Which plugin.
#[derive(Debug, clap::Args)]
pub struct ReferenceArgs {
    /// `name`, `name@version` or `sha256:…`
    pub reference: String,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// Uploads a plugin.
///
/// # Errors
/// When the server cannot be reached or refuses it.
pub(super) fn push(args: &PushArgs) -> Result<bool, AuthorError> {
    let bytes = read(&args.file)?;
    if bytes.len() > SLOW_BYTES {
        eprintln!("the server compiles it; an interpreter takes half a minute and more");
    }
    let (status, plugin) = args.server.ask(Method::PUT, "/v1/plugins", bytes)?;
    let known = if status == 201 { "" } else { ", known before" };
    println!("{}, {}{known}", named(&plugin), text(&plugin["digest"]));
    Ok(true)
}

/// Lists the plugins.
///
/// # Errors
/// When the server cannot be reached or refuses to.
pub(super) fn list(args: &ListArgs) -> Result<bool, AuthorError> {
    let (_, answer) = args.server.ask(Method::GET, "/v1/plugins", vec![])?;
    if args.json {
        println!("{answer:#}");
        return Ok(true);
    }
    for plugin in answer["data"].as_array().into_iter().flatten() {
        let state = if plugin["disabled"].is_string() {
            "  disabled"
        } else {
            ""
        };
        let origin = if plugin["builtin"] == true {
            "came with the server"
        } else {
            "uploaded"
        };
        println!(
            "{:<24} {:<10} {:<17} {origin}{state}",
            text(&plugin["name"]),
            text(&plugin["version"]),
            text(&plugin["kind"])
        );
    }
    Ok(true)
}

/// Shows all that the server knows of a plugin, as JSON.
///
/// # Errors
/// When the server cannot be reached or has no such plugin.
pub(super) fn show(args: &ReferenceArgs) -> Result<bool, AuthorError> {
    let path = format!("/v1/plugins/{}", args.reference);
    let (_, plugin) = args.server.ask(Method::GET, &path, vec![])?;
    println!("{plugin:#}");
    Ok(true)
}

/// Removes what the reference names.
///
/// # Errors
/// When the server cannot be reached, has no such plugin or keeps it.
pub(super) fn remove(args: &ReferenceArgs) -> Result<bool, AuthorError> {
    let path = format!("/v1/plugins/{}", args.reference);
    let (_, answer) = args.server.ask(Method::DELETE, &path, vec![])?;
    for plugin in answer["data"].as_array().into_iter().flatten() {
        println!("removed {}", named(plugin));
    }
    Ok(true)
}

fn named(plugin: &Value) -> String {
    let [name, version, kind] = ["name", "version", "kind"].map(|key| text(&plugin[key]));
    format!("{name}@{version}, a {kind}")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

impl ServerArgs {
    /// One request. Its answer's status and content, if it went well.
    fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(u16, Value), AuthorError> {
        let url = format!("{}{path}", self.server.trim_end_matches('/'));
        if !url.starts_with("http://") {
            let message = format!("--server is {}; it must begin with http://", self.server);
            return Err(AuthorError::Usage(message));
        }
        let mut request = Request::builder().method(method).uri(&url);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Body::from(body))
            .map_err(|error| AuthorError::Usage(format!("{url}: {error}")))?;
        let (status, bytes) = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| AuthorError::Server(format!("cannot be asked: {error}")))?
            .block_on(send(request))
            .map_err(|error| {
                AuthorError::Server(format!(
                    "at {} does not answer: {}",
                    self.server,
                    cause(&*error)
                ))
            })?;
        let answer = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if (200..300).contains(&status) {
            return match answer {
                Value::Object(_) => Ok((status, answer)),
                _ => Err(AuthorError::Server(format!(
                    "at {} answers {status}, but not as Sluice does: is it another server?",
                    self.server
                ))),
            };
        }
        let said = answer["error"]["message"]
            .as_str()
            .unwrap_or("nothing more");
        let why = match (status, &self.token) {
            (401, None) => "asks for a token, to be given with --token or SLUICE_TOKEN: ",
            (401, Some(_)) => "does not know this token: ",
            (403, _) => "does not let this token do it: ",
            _ => "",
        };
        Err(AuthorError::Server(format!(
            "at {} answers {status}: {why}{said}",
            self.server
        )))
    }
}

/// The error that is behind the others.
fn cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

async fn send(request: Request<Body>) -> Result<(u16, Bytes), Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let response = client.request(request).await?;
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(Body::new(response.into_body()), MAX_ANSWER_BYTES).await?;
    Ok((status, body))
}
