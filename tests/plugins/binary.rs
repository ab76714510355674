//! WebAssembly binaries made from the test components.
#![allow(dead_code, reason = "each test binary uses some of it")]

use wit_component::{DecodedWasm, StringEncoding};

use crate::support::component;

const MODULE_HEADER: &[u8] = b"\0asm\x01\0\0\0";
const CORE_MODULE_SECTION: u8 = 1;
const TYPE_SECTION: u8 = 1;
const FUNCTION_SECTION: u8 = 3;
const CODE_SECTION: u8 = 10;
const I32: u8 = 0x7f;

/// A component's main module, with its component type in a custom section.
pub(crate) fn module(name: &str) -> Vec<u8> {
    let component = component(name);
    embed(main_module(&component), &component)
}

/// The same with one more function, which nothing calls.
pub(crate) fn module_with(name: &str, function: &[u8]) -> Vec<u8> {
    module_with_many(name, function, 1)
}

/// The same with that function so many times.
pub(crate) fn module_with_many(name: &str, function: &[u8], n: u32) -> Vec<u8> {
    let component = component(name);
    embed(
        add_functions(&main_module(&component), function, n),
        &component,
    )
}

/// The first core module in a component: the plugin's own code.
pub(crate) fn main_module(component: &[u8]) -> Vec<u8> {
    sections(component)
        .into_iter()
        .find(|(id, _)| *id == CORE_MODULE_SECTION)
        .unwrap()
        .1
        .to_vec()
}

fn embed(mut module: Vec<u8>, component: &[u8]) -> Vec<u8> {
    let DecodedWasm::Component(resolve, world) = wit_component::decode(component).unwrap() else {
        panic!("not a component");
    };
    wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
        .unwrap();
    module
}

/// A thousand nested blocks, a jump into each of them, a thousand locals that
/// differ by the way taken: a million values to keep apart.
pub(crate) fn slow_function() -> Vec<u8> {
    const N: u32 = 1000;
    let get = |local| [&[0x20][..], &leb128(local)].concat();
    let increment = |local| [&get(local)[..], &[0x41, 1, 0x6a, 0x21], &leb128(local)].concat();
    let mut body = [&[1][..], &leb128(N + 1), &[I32]].concat();
    body.extend([0x02, 0x40].repeat(N as usize));
    body.extend(get(N));
    body.push(0x0e);
    body.extend(leb128(N - 1));
    body.extend((0..N).flat_map(leb128));
    for local in 0..N {
        body.push(0x0b);
        body.extend(increment(local));
    }
    body.extend(get(0));
    for local in 1..N {
        body.extend(get(local));
        body.push(0x6a);
    }
    body.extend([0x1a, 0x0b]);
    body
}

/// `depth` loops in each other, around work on all of `n_locals`.
pub(crate) fn nested_loops(depth: u32, n_locals: u32) -> Vec<u8> {
    let get = |local| [&[0x20][..], &leb128(local)].concat();
    let mut body = [&[1][..], &leb128(n_locals), &[I32]].concat();
    body.extend([0x03, 0x40].repeat(depth as usize));
    for local in 0..n_locals {
        // Each local gets its own value and its neighbour's.
        body.extend(get(local));
        body.extend(get((local + 1) % n_locals));
        body.extend([0x6a, 0x21]);
        body.extend(leb128(local));
    }
    for level in 0..depth {
        // Back to the start of its loop, or out of it.
        body.extend(get(level % n_locals));
        body.extend([0x0d, 0, 0x0b]);
    }
    body.push(0x0b);
    body
}

/// Adds a function without parameters and results `n` times, given as its
/// locals and instructions.
fn add_functions(module: &[u8], body: &[u8], n: u32) -> Vec<u8> {
    let mut new_type = 0;
    let mut out = MODULE_HEADER.to_vec();
    for (id, content) in sections(module) {
        let (count, entries) = read_leb128(content);
        let n_added = if id == TYPE_SECTION { 1 } else { n };
        let added = match id {
            TYPE_SECTION => {
                new_type = count;
                vec![0x60, 0, 0]
            }
            FUNCTION_SECTION => leb128(new_type).repeat(n as usize),
            CODE_SECTION => [&leb128(body.len() as u32)[..], body]
                .concat()
                .repeat(n as usize),
            _ => {
                write_section(&mut out, id, content);
                continue;
            }
        };
        write_section(
            &mut out,
            id,
            &[&leb128(count + n_added), entries, &added].concat(),
        );
    }
    out
}

/// The sections of a module or a component, with their ids.
fn sections(binary: &[u8]) -> Vec<(u8, &[u8])> {
    let mut sections = Vec::new();
    let mut rest = &binary[MODULE_HEADER.len()..];
    while let [id, after @ ..] = rest {
        let (size, after) = read_leb128(after);
        let (content, after) = after.split_at(size as usize);
        sections.push((*id, content));
        rest = after;
    }
    sections
}

fn write_section(out: &mut Vec<u8>, id: u8, content: &[u8]) {
    out.push(id);
    out.extend(leb128(content.len() as u32));
    out.extend(content);
}

fn read_leb128(bytes: &[u8]) -> (u32, &[u8]) {
    let n_bytes = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value = bytes[..n_bytes]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 7 | u32::from(byte & 0x7f));
    (value, &bytes[n_bytes..])
}

fn leb128(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A binary with each occurrence of `part` replaced by as many other bytes.
pub(crate) fn replaced(binary: &[u8], part: &str, other: &str) -> Vec<u8> {
    assert_eq!(part.len(), other.len());
    let mut replaced = binary.to_vec();
    let mut n_replaced = 0;
    for at in 0..binary.len() - part.len() {
        if binary[at..].starts_with(part.as_bytes()) {
            replaced[at..at + part.len()].copy_from_slice(other.as_bytes());
            n_replaced += 1;
        }
    }
    assert_ne!(n_replaced, 0, "{part} does not occur");
    replaced
}
