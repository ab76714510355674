//! What is uploaded outlives the registry, and a version never means other
//! bytes.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sluice::plugin::{Folder, Registry, Store};

use crate::support::{compiler, component, runtime};

fn registry(folder: &Path) -> Registry {
    let registry = Registry::new(Arc::clone(runtime()), compiler());
    registry.with_store(Store::open(folder).unwrap()).unwrap()
}

fn names(registry: &Registry) -> Vec<String> {
    let plugins = registry.list();
    plugins.iter().map(|plugin| plugin.name.clone()).collect()
}

fn n_files(folder: &Path) -> usize {
    fs::read_dir(folder.join("components")).unwrap().count()
}

#[test]
fn uploads_and_removals_outlive_the_registry() {
    let folder = tempfile::tempdir().unwrap();
    let first = registry(folder.path());
    let force = first.upload_by(&component("force"), Some("ann")).unwrap();
    first.upload(&component("counter")).unwrap();
    first.upload(&component("boost")).unwrap();
    first.remove("counter").unwrap();
    drop(first);

    let second = registry(folder.path());
    assert_eq!(names(&second), ["boost", "force"]);
    assert_eq!(n_files(folder.path()), 2);
    let again = second.get("force").unwrap();
    assert_eq!(again.digest, force.plugin.digest);
    assert_eq!(again.uploaded_by.as_deref(), Some("ann"));
    let age = again.uploaded_at.duration_since(force.plugin.uploaded_at);
    assert!(age.unwrap_or_else(|error| error.duration()).as_millis() <= 1);
    // The same bytes are no news; removed ones can come back.
    assert!(!second.upload(&component("force")).unwrap().created);
    assert!(second.upload(&component("counter")).unwrap().created);
    drop(second);
    assert_eq!(
        names(&registry(folder.path())),
        ["boost", "counter", "force"]
    );
}

/// Each comes before or after the others, and what is told is what is kept.
#[test]
fn the_same_upload_at_once_beside_removals_is_there_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let shared = registry(folder.path());
    let bytes = component("force");
    shared.upload(&bytes).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    shared.upload(&bytes).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                // There may be none.
                let _ = shared.remove("force");
            }
        });
    });
    let is_there = shared.get("force").is_some();
    assert_eq!(n_files(folder.path()), usize::from(is_there));
    drop(shared);
    let after = registry(folder.path());
    assert_eq!(after.get("force").is_some(), is_there);
}

#[test]
fn a_removed_version_stays_taken() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = component("force");
    let first = registry(folder.path());
    first.upload(&bytes).unwrap();
    first.remove("force").unwrap();
    drop(first);
    // The same component with a custom section more: other bytes.
    let other = [&bytes[..], &[0, 3, 1, b'x', 0]].concat();
    let second = registry(folder.path());
    let error = second.upload(&other).unwrap_err();
    assert_eq!(error.code(), "version_conflict", "{error}");
    assert!(second.upload(&bytes).unwrap().created);
}

#[test]
fn a_damaged_component_is_left_out_and_the_rest_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let first = registry(folder.path());
    let force = first.upload(&component("force")).unwrap().plugin;
    first.upload(&component("boost")).unwrap();
    drop(first);
    let hex = force.digest.trim_start_matches("sha256:");
    let file = folder.path().join(format!("components/{hex}.wasm"));
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(names(&registry(folder.path())), ["boost"]);
}

#[test]
fn a_folder_is_loaded_and_its_changes_are_picked_up() {
    let folder = tempfile::tempdir().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("a.wasm", &component("force"));
    write("b.wasm", b"half of something");
    write("c.txt", b"no plugin");
    let registry = registry(kept.path());
    let mut plugins = Folder::open(folder.path().to_owned()).unwrap();
    plugins.load(&registry, true);
    assert_eq!(names(&registry), ["force"]);
    // The folder keeps them, not the store.
    assert_eq!(n_files(kept.path()), 0);
    write("b.wasm", &component("boost"));
    plugins.load(&registry, false);
    assert_eq!(names(&registry), ["force"], "it may be half written");
    plugins.load(&registry, false);
    assert_eq!(names(&registry), ["boost", "force"]);
    plugins.load(&registry, false);
    assert!(Folder::open(folder.path().join("none")).is_err());
}
