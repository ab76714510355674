//! New projects in other languages than Rust.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{file, plugin_in};

const KINDS: [&str; 3] = ["token", "logits", "sampler"];

fn new(folder: &Path, name: &str, kind: &str, lang: &str) {
    let run = plugin_in(folder, &["new", name, "--kind", kind, "--lang", lang]);
    assert_eq!(run.code, Some(0), "{}", run.errors);
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn projects_in_other_languages_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    for kind in KINDS {
        for (lang, own) in [
            ("c", &["plugin.h", "plugin.c", "Makefile"][..]),
            ("js", &["plugin.js", "build.mjs", "package.json"]),
            ("python", &["app.py", "requirements.txt"]),
        ] {
            let name = format!("my-{kind}-{lang}");
            new(folder.path(), &name, kind, lang);
            let project = folder.path().join(&name);
            for file in own.iter().chain(&["README.md", "cases.json", ".gitignore"]) {
                let text = read(&project.join(file));
                assert!(!text.contains("{{"), "{file} is not filled in");
            }
            // It says its own name, and is built for its own world.
            assert!(read(&project.join(own[0])).contains(&format!("\"{name}\"")));
            let sources = own.iter().chain(&["README.md"]);
            let mut sources = sources.map(|file| read(&project.join(file)));
            assert!(sources.any(|text| text.contains(&format!("{kind}-plugin"))));
            for contract in ["host.wit", "plugin.wit", "types.wit"] {
                let original = read(Path::new(&file(&format!("wit/{contract}"))));
                assert_eq!(read(&project.join("wit").join(contract)), original);
            }
        }
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [
        "new", "mine", "--kind", "token", "--lang", "c", "--sdk", ".",
    ];
    let run = plugin_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(1));
    assert!(
        run.errors.contains("--sdk is for projects in Rust"),
        "{}",
        run.errors
    );
    assert!(!folder.path().join("mine").exists());
    let run = plugin_in(
        folder.path(),
        &["new", "mine", "--kind", "token", "--lang", "go"],
    );
    assert_eq!(run.code, Some(2));
    assert!(run.errors.contains("rust, c, js, python"), "{}", run.errors);
}

/// The commands that a project's README gives to build it.
fn build(project: &Path, kind: &str, lang: &str) {
    let name = project.file_name().unwrap().to_str().unwrap();
    let commands = match lang {
        "c" => "make".to_owned(),
        "js" => "npm install && npm run build".to_owned(),
        _ => format!("componentize-py -d wit -w {kind}-plugin componentize app -o {name}.wasm"),
    };
    let readme = read(&project.join("README.md"));
    for command in commands.split(" && ") {
        assert!(readme.contains(command), "the README lacks `{command}`");
    }
    let status = Command::new("sh")
        .current_dir(project)
        .args(["-c", &commands])
        .status()
        .unwrap();
    assert!(status.success(), "{name}: {commands}");
}

/// ```text
/// cargo test --release --test author -- --ignored projects
/// ```
#[test]
#[ignore = "needs clang, wasi-libc and wit-bindgen, Node and npm's registry, and componentize-py"]
fn projects_in_other_languages_build_and_pass_their_own_test() {
    let folder = tempfile::tempdir().unwrap();
    for lang in ["c", "js", "python"] {
        for (kind, params) in [
            ("token", r#"{"penalty": 0.5}"#),
            ("logits", r#"{"distance": 3}"#),
            ("sampler", r#"{"k": 4}"#),
        ] {
            let name = format!("my-{kind}-{lang}");
            new(folder.path(), &name, kind, lang);
            let project = folder.path().join(&name);
            build(&project, kind, lang);
            let component = format!("{name}.wasm");
            let run = plugin_in(&project, &["test", &component, "cases.json"]);
            assert_eq!(run.code, Some(0), "{name}: {}{}", run.output, run.errors);
            let cases: Value = serde_json::from_str(&read(&project.join("cases.json"))).unwrap();
            let n = cases.as_array().unwrap().len();
            assert!(run.output.ends_with(&format!("{n} of {n} cases hold\n")));
            let run = plugin_in(&project, &["check", &component, "--params", params]);
            assert_eq!(run.code, Some(0), "{name}: {}{}", run.output, run.errors);
        }
    }
}
