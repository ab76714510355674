//! The files of a new project. A kind's plugin is the same in every language,
//! and so are its cases.

use std::path::Path;

use super::{NewKind, NewLang};

/// A file of a project, with placeholders in double braces.
pub(super) struct File {
    pub(super) path: &'static str,
    pub(super) text: &'static str,
}

/// A file of the project, and the template that it is made of.
macro_rules! files {
    ($($path:literal: $template:literal),* $(,)?) => {
        vec![$(File { path: $path, text: include_str!($template) }),*]
    };
}

/// All files of a project.
pub(super) fn files(kind: NewKind, lang: NewLang) -> Vec<File> {
    let mut files = match lang {
        NewLang::Rust => rust(kind),
        NewLang::C => c(kind),
        NewLang::Js => javascript(kind),
        NewLang::Python => python(kind),
    };
    files.push(cases(kind));
    // The SDK has it for Rust.
    if lang != NewLang::Rust {
        files.extend(contract());
    }
    let text = match lang {
        NewLang::Rust => "/target\n",
        NewLang::C => "/bindings\n*.wasm\n",
        NewLang::Js => "node_modules\n*.wasm\n",
        NewLang::Python => "__pycache__\n.venv\n*.wasm\n",
    };
    let path = ".gitignore";
    files.push(File { path, text });
    files
}

/// What differs by kind, and is the same in every language.
struct Facts {
    world: &'static str,
    /// The interface, as a module is named.
    module: &'static str,
    /// The interface, as a class is named.
    resource: &'static str,
    summary: &'static str,
    /// The only parameter, as a member of its JSON Schema's `properties`.
    property: &'static str,
}

impl NewKind {
    fn facts(self) -> Facts {
        match self {
            Self::Token => Facts {
                world: "token-plugin",
                module: "token_processor",
                resource: "TokenProcessor",
                summary: "Lowers tokens by how often they were generated.",
                property: r#""penalty": {"type": "number", "minimum": -100, "maximum": 100, "default": 0}"#,
            },
            Self::Logits => Facts {
                world: "logits-plugin",
                module: "logits_processor",
                resource: "LogitsProcessor",
                summary: "Bans tokens far below the best one.",
                property: r#""distance": {"type": "number", "minimum": 0, "maximum": 1000}"#,
            },
            Self::Sampler => Facts {
                world: "sampler-plugin",
                module: "sampler",
                resource: "Sampler",
                summary: "Draws among the best tokens.",
                property: r#""k": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 1}"#,
            },
        }
    }
}

/// A template's text with its placeholders filled in.
pub(super) fn fill(text: &str, kind: NewKind, name: &str, sdk: Option<&Path>) -> String {
    let Facts {
        world,
        module,
        resource,
        summary,
        property,
    } = kind.facts();
    let sdk = sdk.map(|sdk| sdk.display().to_string()).unwrap_or_default();
    text.replace("{{name}}", name)
        .replace("{{file}}", &name.replace('-', "_"))
        .replace("{{sdk}}", &sdk)
        .replace("{{world}}", world)
        .replace("{{bindings}}", &world.replace('-', "_"))
        .replace("{{module}}", module)
        .replace("{{resource}}", resource)
        .replace("{{summary}}", summary)
        .replace("{{property}}", property)
        .replace("{{property_in_c}}", &property.replace('"', "\\\""))
}

fn cases(kind: NewKind) -> File {
    let text = match kind {
        NewKind::Token => include_str!("token.json"),
        NewKind::Logits => include_str!("logits.json"),
        NewKind::Sampler => include_str!("sampler.json"),
    };
    let path = "cases.json";
    File { path, text }
}

/// The contract, for generators of bindings.
fn contract() -> Vec<File> {
    files![
        "wit/host.wit": "../../../../wit/host.wit",
        "wit/plugin.wit": "../../../../wit/plugin.wit",
        "wit/types.wit": "../../../../wit/types.wit",
    ]
}

fn rust(kind: NewKind) -> Vec<File> {
    let mut files = files!["Cargo.toml": "manifest.toml", "README.md": "readme.md"];
    files.extend(match kind {
        NewKind::Token => files!["src/lib.rs": "token.rs.txt"],
        NewKind::Logits => files!["src/lib.rs": "logits.rs.txt"],
        NewKind::Sampler => files!["src/lib.rs": "sampler.rs.txt"],
    });
    files
}

fn c(kind: NewKind) -> Vec<File> {
    let mut files = files![
        "Makefile": "c/Makefile",
        "plugin.h": "c/plugin.h",
        "README.md": "c/readme.md",
    ];
    files.extend(match kind {
        NewKind::Token => files!["plugin.c": "c/token.c"],
        NewKind::Logits => files!["plugin.c": "c/logits.c"],
        NewKind::Sampler => files!["plugin.c": "c/sampler.c"],
    });
    files
}

fn javascript(kind: NewKind) -> Vec<File> {
    let mut files = files![
        "package.json": "javascript/package.json",
        "build.mjs": "javascript/build.mjs",
        "README.md": "javascript/readme.md",
    ];
    files.extend(match kind {
        NewKind::Token => files!["plugin.js": "javascript/token.js"],
        NewKind::Logits => files!["plugin.js": "javascript/logits.js"],
        NewKind::Sampler => files!["plugin.js": "javascript/sampler.js"],
    });
    files
}

fn python(kind: NewKind) -> Vec<File> {
    let mut files = files![
        "app.py": "python/app.py",
        "requirements.txt": "python/requirements.txt",
        "README.md": "python/readme.md",
    ];
    files.extend(match kind {
        NewKind::Token => files!["token_processor.py": "python/token_processor.py"],
        NewKind::Logits => files!["logits_processor.py": "python/logits_processor.py"],
        NewKind::Sampler => files!["sampler.py": "python/sampler.py"],
    });
    files
}
