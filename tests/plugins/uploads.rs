//! What an upload can do: become a plugin, or be refused with a reason.

use std::sync::Arc;
use std::time::Duration;

use sluice::plugin::{Kind, Registry, RemoveError, Runtime, UploadError};

use crate::binary::{self, Module};
use crate::support::{compiler, component, limits};

fn registry() -> Registry {
    let limits = sluice::plugin::Limits {
        max_instances: 4,
        ..limits()
    };
    Registry::new(Runtime::new(limits).unwrap(), compiler())
}

fn refusal(registry: &Registry, bytes: &[u8]) -> UploadError {
    match registry.upload(bytes) {
        Ok(uploaded) => panic!("{:?} was accepted", uploaded.plugin),
        Err(error) => error,
    }
}

#[test]
fn an_upload_is_found_by_name_version_and_digest() {
    let registry = registry();
    let bytes = component("counter");
    let uploaded = registry.upload(&bytes).unwrap();
    assert!(uploaded.created);
    let plugin = uploaded.plugin;
    assert_eq!(plugin.name, "counter");
    assert_eq!(plugin.version.to_string(), "0.1.0");
    assert_eq!(plugin.kind, Kind::TokenProcessor);
    assert_eq!(plugin.size_bytes, bytes.len());
    assert_eq!(plugin.digest.len(), "sha256:".len() + 64);
    for reference in ["counter", "counter@0.1.0", plugin.digest.as_str()] {
        assert!(
            Arc::ptr_eq(&registry.get(reference).unwrap(), &plugin),
            "{reference}"
        );
    }
    for reference in ["Counter", "counter@0.1.1", "counter@", "sha256:00", ""] {
        assert!(registry.get(reference).is_none(), "{reference}");
    }
    let again = registry.upload(&bytes).unwrap();
    assert!(!again.created);
    assert!(Arc::ptr_eq(&again.plugin, &plugin));
    assert_eq!(registry.list().len(), 1);
}

/// The default chain of every request uses what stands in for a shipped plugin.
#[test]
fn a_stand_in_for_a_shipped_plugin_works_without_parameters() {
    let registry = registry();
    registry.upload_builtin(&component("counter")).unwrap();
    // It is a token processor too, and requires `tokens`.
    let picky = binary::numbered(&component("stop-at"), 20);
    let picky = binary::replaced(&picky, "stop-at", "counter");
    let error = refusal(&registry, &picky);
    assert_eq!(error.code(), "version_conflict", "{error}");
    assert!(error.to_string().contains("\"tokens\""), "{error}");
    assert_eq!(
        registry.get("counter").unwrap().version.to_string(),
        "0.1.0"
    );
    let modest = binary::numbered(&component("counter"), 20);
    assert!(registry.upload(&modest).unwrap().created);
    assert_eq!(
        registry.get("counter").unwrap().version.to_string(),
        "0.2.0"
    );
}

#[test]
fn what_is_removed_can_be_uploaded_again() {
    let registry = registry();
    registry.upload_builtin(&component("sampler")).unwrap();
    let bytes = component("counter");
    registry.upload(&bytes).unwrap();
    assert_eq!(registry.remove("counter").unwrap().len(), 1);
    assert!(registry.get("counter").is_none());
    assert!(matches!(
        registry.remove("counter"),
        Err(RemoveError::NotFound { .. })
    ));
    assert!(registry.upload(&bytes).unwrap().created);
    assert!(matches!(
        registry.remove("sampler"),
        Err(RemoveError::Builtin { .. })
    ));
    assert!(registry.get("sampler").unwrap().builtin);
}

#[test]
fn other_bytes_under_the_same_version_are_a_conflict() {
    let registry = registry();
    let bytes = component("counter");
    let plugin = registry.upload(&bytes).unwrap().plugin;
    // A custom section more: another digest, the same behaviour.
    let other = [&bytes[..], &[0, 3, 1, b'x', 0]].concat();
    assert_eq!(refusal(&registry, &other).code(), "version_conflict");
    assert!(Arc::ptr_eq(&registry.get("counter").unwrap(), &plugin));
    assert_eq!(registry.list().len(), 1);
}

#[test]
fn a_registry_that_is_full_takes_no_more_until_one_is_removed() {
    let limits = sluice::plugin::Limits {
        max_instances: 4,
        max_plugins: 2,
        ..limits()
    };
    let registry = Registry::new(Runtime::new(limits).unwrap(), compiler());
    registry.upload_builtin(&component("sampler")).unwrap();
    registry.upload(&component("counter")).unwrap();
    registry.upload(&component("force")).unwrap();
    let error = refusal(&registry, &component("boost"));
    assert_eq!(error.code(), "registry_full", "{error}");
    assert!(error.to_string().contains("2 plugins"), "{error}");
    // What is there is no more.
    assert!(!registry.upload(&component("force")).unwrap().created);
    registry.remove("counter").unwrap();
    registry.upload(&component("boost")).unwrap();
}

#[test]
fn what_is_no_component_is_refused() {
    let registry = registry();
    for (bytes, code) in [
        (&b""[..], "not_a_component"),
        (b"(component)", "text_component"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", "native_code"),
        (b"\0asm\x0d\0\x01\0", "no_kind"),
        (b"\0asm\x01\0\0\0", "no_kind"),
        (b"\0asm\x0d\0\x01\0\x63\x02xx", "invalid_component"),
        (b"{\"model\": \"x\"}", "not_a_component"),
    ] {
        let error = refusal(&registry, bytes);
        assert_eq!(error.code(), code, "{error}");
    }
    assert!(registry.list().is_empty());
}

#[test]
fn a_cut_component_is_refused_wherever_it_is_cut() {
    let registry = registry();
    let whole = component("counter");
    for i in 0..16 {
        let error = refusal(&registry, &whole[..whole.len() * i / 16]);
        let code = error.code();
        let fits = [
            "not_a_component",
            "truncated_component",
            "invalid_component",
            "no_kind",
        ];
        assert!(fits.contains(&code), "{i}/16: {code}: {error}");
    }
    assert!(registry.list().is_empty());
    assert!(registry.upload(&whole).is_ok());
}

#[test]
fn a_component_that_is_too_large_is_refused() {
    let runtime = Runtime::new(sluice::plugin::Limits {
        max_instances: 4,
        upload_bytes: 1000,
        ..limits()
    })
    .unwrap();
    let registry = Registry::new(runtime, compiler());
    let error = refusal(&registry, &component("counter"));
    assert_eq!(error.code(), "too_large");
    assert!(error.to_string().contains("1000"), "{error}");
}

#[test]
fn a_component_that_fails_to_describe_itself_is_refused() {
    let registry = registry();
    let error = refusal(&registry, &component("trap-describe"));
    assert_eq!(error.code(), "describe_failed", "{error}");
    assert!(error.to_string().contains("unreachable"), "{error}");
    let error = refusal(&registry, &component("spin-describe"));
    assert_eq!(error.code(), "describe_failed", "{error}");
    assert!(
        error.to_string().contains("longer than its limit"),
        "{error}"
    );
}

#[test]
fn damaged_components_never_hurt_the_server() {
    let registry = registry();
    let whole = component("counter");
    // A small generator of our own: the places are the same in every run.
    let mut state = 0x9E37_79B9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as usize
    };
    for _ in 0..24 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            let place = 8 + next() % (bytes.len() - 8);
            bytes[place] = next() as u8;
        }
        // Accepted or refused: the damage may not matter.
        if let Err(error) = registry.upload(&bytes) {
            assert_ne!(error.code(), "internal", "{error}");
        }
    }
    registry.upload(&component("sampler")).unwrap();
}

#[test]
fn a_core_module_that_carries_its_type_is_a_plugin() {
    let registry = registry();
    let plugin = registry
        .upload(&Module::of(&component("counter")).embedded())
        .unwrap()
        .plugin;
    assert_eq!(
        (plugin.name.as_str(), plugin.kind),
        ("counter", Kind::TokenProcessor)
    );
    // Without the custom section nobody knows what its exports mean.
    let bare = binary::main_module(&component("counter"));
    let error = refusal(&registry, &bare);
    assert_eq!(error.code(), "invalid_component", "{error}");
}

/// A registry whose compiler may take no more than that.
fn strict_registry(compile: Duration, compile_bytes: u64) -> Registry {
    let limits = sluice::plugin::Limits {
        max_instances: 4,
        compile,
        compile_bytes,
        ..limits()
    };
    Registry::new(Runtime::new(limits).unwrap(), compiler())
}

#[test]
fn a_component_that_compiles_for_minutes_is_cut_off() {
    let registry = strict_registry(Duration::from_secs(2), 2 << 30);
    for function in [binary::many_ways(), binary::nested_loops()] {
        let bomb = Module::of(&component("counter")).with_functions(1, |_| function.clone());
        let error = refusal(&registry, &bomb.embedded());
        // On a busy machine the clock runs out before the processor time does.
        let fits = ["too_complex", "compile_timeout"];
        assert!(fits.contains(&error.code()), "{error}");
        assert!(error.to_string().contains("limit"), "{error}");
    }
    registry.upload(&component("counter")).unwrap();
}

#[test]
fn a_component_that_takes_gigabytes_to_compile_is_cut_off() {
    let registry = strict_registry(Duration::from_secs(40), 256 << 20);
    let functions =
        Module::of(&component("counter")).with_functions(900_000, binary::small_function);
    let error = refusal(&registry, &functions.embedded());
    assert_eq!(error.code(), "too_complex", "{error}");
    assert!(error.to_string().contains("256 MiB of memory"), "{error}");
    registry.upload(&component("counter")).unwrap();
}

/// Whoever reads the metadata of such a module recurses without end.
#[test]
fn a_module_whose_packages_form_a_circle_is_refused() {
    let registry = registry();
    let module = binary::module_of_circular_packages(&component("counter"));
    let error = refusal(&registry, &module);
    assert_eq!(error.code(), "compile_crashed", "{error}");
    registry.upload(&component("counter")).unwrap();
}

#[test]
fn what_does_not_fit_the_contract_is_refused_by_name() {
    let registry = registry();
    let counter = component("counter");
    for (part, other, code, words) in [
        (
            "sluice:sampling/control@0.1.0",
            "sluice:sampling/kontrol@0.1.0",
            "unknown_import",
            "sluice:sampling/kontrol@0.1.0",
        ),
        (
            "sluice:sampling/token-processor@0.1.0",
            "sluice:sampling/token-processor@0.2.0",
            "contract_version",
            "sluice:sampling/token-processor@0.2.0",
        ),
        (
            "sluice:sampling/token-processor@0.1.0",
            "sluice:sampling/taken-processor@0.1.0",
            "no_kind",
            "exports none of",
        ),
        ("sequence.plan", "sequence.plot", "wrong_type", "plan"),
    ] {
        let error = refusal(&registry, &binary::replaced(&counter, part, other));
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}
