//! `sluice plugin new`: a project to start from.

mod template;

use std::fs;
use std::path::{Path, PathBuf};

use super::AuthorError;

/// The SDK in the checkout that this program was built from. It is published
/// nowhere yet.
const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/sdk");

/// What is made.
#[derive(Debug, clap::Args)]
pub struct NewArgs {
    /// The plugin's name, and the folder that is made for it: lower-case
    /// letters, digits and dashes
    pub name: String,
    /// token: decides from tokens alone and costs nothing; logits: reads and
    /// changes the logits; sampler: chooses the token
    #[arg(long)]
    pub kind: NewKind,
    /// The language. JavaScript and Python bring their interpreters along: 12
    /// and 18 MB, ten seconds to compile, and some ten microseconds a call
    #[arg(long, default_value = "rust")]
    pub lang: NewLang,
    /// The SDK's folder, `plugins/sdk` of a checkout, for Rust [default: the
    /// checkout that this program was built from]
    #[arg(long, value_name = "FOLDER")]
    pub sdk: Option<PathBuf>,
}

/// Which of the three kinds it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NewKind {
    Token,
    Logits,
    Sampler,
}

/// What it is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NewLang {
    Rust,
    C,
    Js,
    Python,
}

/// Writes the project.
///
/// # Errors
/// When the name cannot be a plugin's, its folder is there already, or there is
/// no SDK for it.
pub(super) fn run(args: &NewArgs) -> Result<bool, AuthorError> {
    check_name(&args.name)?;
    let sdk = find_sdk(args)?;
    let folder = Path::new(&args.name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AuthorError::Write { path, source }
    };
    if folder.exists() {
        let message = format!("{} is there already; take another name", folder.display());
        return Err(AuthorError::Usage(message));
    }
    fs::create_dir(folder).map_err(failed(folder))?;
    for file in template::files(args.kind, args.lang) {
        let path = folder.join(file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        let text = template::fill(file.text, args.kind, &args.name, sdk.as_deref());
        fs::write(&path, text).map_err(failed(&path))?;
    }
    println!("made {0}; see {0}/README.md", args.name);
    if let Some(sdk) = sdk {
        println!("it depends on the SDK by path: {}", sdk.display());
    }
    Ok(true)
}

/// Where the SDK is that a project depends on: a project in Rust does.
fn find_sdk(args: &NewArgs) -> Result<Option<PathBuf>, AuthorError> {
    if args.lang != NewLang::Rust {
        return match &args.sdk {
            None => Ok(None),
            Some(_) => Err(AuthorError::Usage(
                "--sdk is for projects in Rust: the others need the contract alone, which they \
                 get a copy of"
                    .to_owned(),
            )),
        };
    }
    let sdk = args.sdk.clone().unwrap_or_else(|| SDK.into());
    let found = sdk.canonicalize().map_err(|_| {
        let message = format!(
            "there is no SDK at {}; give the folder `plugins/sdk` of a checkout with --sdk",
            sdk.display()
        );
        AuthorError::Usage(message)
    })?;
    Ok(Some(found))
}

/// A plugin's name that is a package's too.
fn check_name(name: &str) -> Result<(), AuthorError> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let starts_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts_well && !name.ends_with('-') && name.len() <= 64 && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(AuthorError::Usage(format!(
        "the name `{name}` must be at most 64 lower-case letters, digits and dashes, begin with a \
         letter and end with no dash"
    )))
}
