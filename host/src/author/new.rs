//! `sluice plugin new`: a project to start from.

use std::fs;
use std::path::{Path, PathBuf};

use super::AuthorError;

/// The SDK in the checkout that this program was built from. It is published
/// nowhere yet.
const SDK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../plugins/sdk");

/// The files that all kinds share.
const MANIFEST: &str = include_str!("new/manifest.toml");
const README: &str = include_str!("new/readme.md");
const IGNORED: &str = "/target\n";

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
    /// The SDK's folder, `plugins/sdk` of a checkout [default: the checkout
    /// that this program was built from]
    #[arg(long, value_name = "FOLDER")]
    pub sdk: Option<PathBuf>,
}

/// Which trait it implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NewKind {
    Token,
    Logits,
    Sampler,
}

impl NewKind {
    fn source(self) -> &'static str {
        match self {
            Self::Token => include_str!("new/token.rs.txt"),
            Self::Logits => include_str!("new/logits.rs.txt"),
            Self::Sampler => include_str!("new/sampler.rs.txt"),
        }
    }

    fn cases(self) -> &'static str {
        match self {
            Self::Token => include_str!("new/token.json"),
            Self::Logits => include_str!("new/logits.json"),
            Self::Sampler => include_str!("new/sampler.json"),
        }
    }
}

/// Writes the project.
///
/// # Errors
/// When the name cannot be a plugin's, its folder is there already, or there is
/// no SDK.
pub(super) fn run(args: &NewArgs) -> Result<bool, AuthorError> {
    check_name(&args.name)?;
    let sdk = args.sdk.clone().unwrap_or_else(|| SDK.into());
    let sdk = sdk.canonicalize().map_err(|_| {
        let message = format!(
            "there is no SDK at {}; give the folder `plugins/sdk` of a checkout with --sdk",
            sdk.display()
        );
        AuthorError::Usage(message)
    })?;
    let folder = Path::new(&args.name);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| AuthorError::Write { path, source }
    };
    fs::create_dir(folder).map_err(failed(folder))?;
    fs::create_dir(folder.join("src")).map_err(failed(folder))?;
    let fill = |text: &str| {
        text.replace("{{name}}", &args.name)
            .replace("{{file}}", &args.name.replace('-', "_"))
            .replace("{{sdk}}", &sdk.display().to_string())
    };
    for (file, text) in [
        ("Cargo.toml", MANIFEST),
        ("src/lib.rs", args.kind.source()),
        ("cases.json", args.kind.cases()),
        ("README.md", README),
        (".gitignore", IGNORED),
    ] {
        let path = folder.join(file);
        fs::write(&path, fill(text)).map_err(failed(&path))?;
    }
    println!("made {0}; see {0}/README.md", args.name);
    println!("it depends on the SDK by path: {}", sdk.display());
    Ok(true)
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
