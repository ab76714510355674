//! WebAssembly binaries made from the test components: with other functions,
//! memories and names than a compiler would give them.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use wit_component::{DecodedWasm, StringEncoding};

const MODULE_HEADER: &[u8] = b"\0asm\x01\0\0\0";
/// A component's section of one core module, and of core instances.
const CORE_MODULE: u8 = 1;
const CORE_INSTANCES: u8 = 2;
/// A module's sections.
const TYPES: u8 = 1;
const IMPORTS: u8 = 2;
const FUNCTIONS: u8 = 3;
const TABLES: u8 = 4;
const MEMORIES: u8 = 5;
const EXPORTS: u8 = 7;
const CODE: u8 = 10;

const I32: u8 = 0x7f;
const FUNCTION: u8 = 0;

/// Instructions that test functions are made of.
pub mod code {
    pub const UNREACHABLE: u8 = 0x00;
    pub const LOOP: [u8; 2] = [0x03, 0x40];
    pub const BLOCK: [u8; 2] = [0x02, 0x40];
    pub const END: u8 = 0x0b;
    pub const DROP: u8 = 0x1a;
    pub const ADD: u8 = 0x6a;
    pub const DIVIDE: u8 = 0x6d;
    pub const LOAD: [u8; 3] = [0x28, 0x02, 0x00];
    pub const GROW_TABLE: [u8; 3] = [0xfc, 0x0f, 0x00];
    pub const NULL_FUNCTION: [u8; 2] = [0xd0, 0x70];

    pub fn number(value: i32) -> Vec<u8> {
        let mut bytes = vec![0x41];
        let mut rest = value;
        loop {
            let byte = rest as u8 & 0x7f;
            rest >>= 7;
            if (rest == 0 && byte & 0x40 == 0) || (rest == -1 && byte & 0x40 != 0) {
                bytes.push(byte);
                return bytes;
            }
            bytes.push(byte | 0x80);
        }
    }

    pub fn get(local: u32) -> Vec<u8> {
        [&[0x20][..], &super::leb128(local)].concat()
    }

    pub fn set(local: u32) -> Vec<u8> {
        [&[0x21][..], &super::leb128(local)].concat()
    }

    pub fn branch_if(depth: u32) -> Vec<u8> {
        [&[0x0d][..], &super::leb128(depth)].concat()
    }

    pub fn call(function: u32) -> Vec<u8> {
        [&[0x10][..], &super::leb128(function)].concat()
    }

    /// Stores a number at an address.
    pub fn store(address: i32, value: i32) -> Vec<u8> {
        [number(address), number(value), vec![0x36, 0x02, 0x00]].concat()
    }

    /// A function's body: its number of `i32` locals and its instructions.
    pub fn body(n_locals: u32, instructions: &[&[u8]]) -> Vec<u8> {
        let locals = match n_locals {
            0 => vec![0],
            n => [&[1][..], &super::leb128(n), &[super::I32]].concat(),
        };
        [locals, instructions.concat(), vec![END]].concat()
    }
}

/// A component's main module, on the way to a core module that carries the
/// component's type.
pub struct Module {
    sections: Vec<(u8, Vec<u8>)>,
    component: Vec<u8>,
}

impl Module {
    /// The plugin's own code: the first core module in its component.
    pub fn of(component: &[u8]) -> Self {
        let module = main_module(component);
        let owned = |(id, content): (u8, &[u8])| (id, content.to_vec());
        Self {
            sections: sections(&module).into_iter().map(owned).collect(),
            component: component.to_vec(),
        }
    }

    /// As an upload.
    pub fn embedded(&self) -> Vec<u8> {
        embed(self.bytes(), &self.component)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = MODULE_HEADER.to_vec();
        for (id, content) in &self.sections {
            write_section(&mut out, *id, content);
        }
        out
    }

    /// `n` functions more without parameters and results, which nothing calls.
    pub fn with_functions(mut self, n: u32, body: impl Fn(u32) -> Vec<u8>) -> Self {
        let new_type = self.n_entries(TYPES);
        self.append(TYPES, 1, &[0x60, 0, 0]);
        self.append(FUNCTIONS, n, &leb128(new_type).repeat(n as usize));
        let bodies: Vec<u8> = (0..n).flat_map(|i| sized(&body(i))).collect();
        self.append(CODE, n, &bodies);
        self
    }

    /// The function exported under a name that ends so does something else.
    pub fn with_export(mut self, name: &str, body: &[u8]) -> Self {
        let n_imported = self.imports().len() as u32;
        let exports = self.section(EXPORTS).to_vec();
        let (n_exports, mut rest) = read_leb128(&exports);
        let mut changed = leb128(n_exports);
        let mut old = None;
        for _ in 0..n_exports {
            let (export, after) = read_name(rest);
            let kind = after[0];
            let (index, after) = read_leb128(&after[1..]);
            let is_meant = kind == FUNCTION && export.ends_with(name) && !export.contains("cabi_");
            let new_index = if is_meant {
                assert_eq!(old.replace(index), None, "{name} is ambiguous");
                n_imported + self.n_entries(FUNCTIONS)
            } else {
                index
            };
            changed.extend(sized(export.as_bytes()));
            changed.push(kind);
            changed.extend(leb128(new_index));
            rest = after;
        }
        let old = old.unwrap_or_else(|| panic!("no export ends with {name}")) - n_imported;
        let function_type = self.functions()[old as usize];
        self.replace(EXPORTS, changed);
        self.append(FUNCTIONS, 1, &leb128(function_type));
        self.append(CODE, 1, &sized(body));
        self
    }

    /// Memories of so many pages of 64 KiB each.
    pub fn with_memories(mut self, pages: &[u32]) -> Self {
        let memories = pages.iter().flat_map(|n| [vec![0], leb128(*n)].concat());
        let memories = [leb128(pages.len() as u32), memories.collect()].concat();
        self.replace(MEMORIES, memories);
        self
    }

    /// So many tables of one element more.
    pub fn with_more_tables(mut self, n: u32) -> Self {
        self.append(TABLES, n, &[0x70, 0, 1].repeat(n as usize));
        self
    }

    /// One table of so many elements, which may grow.
    pub fn with_table(mut self, n_elements: u32) -> Self {
        let table = [vec![1, 0x70, 0], leb128(n_elements)].concat();
        self.replace(TABLES, table);
        self
    }

    /// The index of an imported function, such as `log@0.1.0` and `write`.
    pub fn import(&self, interface: &str, function: &str) -> u32 {
        let imports = self.imports();
        let found = imports
            .iter()
            .position(|(module, name)| module.ends_with(interface) && name == function);
        found.unwrap_or_else(|| panic!("{interface} {function} is none of {imports:?}")) as u32
    }

    /// Module and name of each import; guests import functions only.
    fn imports(&self) -> Vec<(String, String)> {
        let (n, mut rest) = read_leb128(self.section(IMPORTS));
        (0..n)
            .map(|_| {
                let (module, after) = read_name(rest);
                let (name, after) = read_name(after);
                assert_eq!(after[0], FUNCTION);
                rest = read_leb128(&after[1..]).1;
                (module.to_owned(), name.to_owned())
            })
            .collect()
    }

    /// The type of each function of the module's own.
    fn functions(&self) -> Vec<u32> {
        let (n, mut rest) = read_leb128(self.section(FUNCTIONS));
        (0..n)
            .map(|_| {
                let (function_type, after) = read_leb128(rest);
                rest = after;
                function_type
            })
            .collect()
    }

    fn section(&self, id: u8) -> &[u8] {
        let found = self.sections.iter().find(|(other, _)| *other == id);
        &found.unwrap_or_else(|| panic!("no section {id}")).1
    }

    fn n_entries(&self, id: u8) -> u32 {
        read_leb128(self.section(id)).0
    }

    fn replace(&mut self, id: u8, content: Vec<u8>) {
        let found = self.sections.iter_mut().find(|(other, _)| *other == id);
        found.unwrap_or_else(|| panic!("no section {id}")).1 = content;
    }

    fn append(&mut self, id: u8, n: u32, entries: &[u8]) {
        let (count, old) = read_leb128(self.section(id));
        let content = [&leb128(count + n)[..], old, entries].concat();
        self.replace(id, content);
    }
}

/// The first core module in a component: the plugin's own code.
pub fn main_module(component: &[u8]) -> Vec<u8> {
    sections(component)
        .into_iter()
        .find(|(id, _)| *id == CORE_MODULE)
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

/// A component with `n` core instances more, of an empty module.
pub fn with_core_instances(component: &[u8], n: u32) -> Vec<u8> {
    let n_modules = sections(component)
        .iter()
        .filter(|(id, _)| *id == CORE_MODULE)
        .count();
    let mut out = component.to_vec();
    write_section(&mut out, CORE_MODULE, MODULE_HEADER);
    let instance = [vec![0], leb128(n_modules as u32), vec![0]].concat();
    let instances = [leb128(n), instance.repeat(n as usize)].concat();
    write_section(&mut out, CORE_INSTANCES, &instances);
    out
}

/// A core module whose component type comes from packages that use each other
/// in a circle, which no text of theirs could say.
pub fn module_of_circular_packages(component: &[u8]) -> Vec<u8> {
    let DecodedWasm::Component(mut resolve, _) = wit_component::decode(component).unwrap() else {
        panic!("not a component");
    };
    let mut package = None;
    for text in [
        "package cc:r; interface c { type t = u32; }",
        "package bb:q; interface b { use cc:r/c.{t}; type s = t; }",
        "package aa:p; interface a { use bb:q/b.{s}; f: func() -> s; } world w { import a; }",
    ] {
        package = Some(resolve.push_source("circle.wit", text).unwrap());
    }
    let world = resolve
        .select_world(&[package.unwrap()], Some("w"))
        .unwrap();
    let mut module = MODULE_HEADER.to_vec();
    wit_component::embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
        .unwrap();
    replaced(&module, "cc:r", "aa:p")
}

/// A thousand nested blocks, a jump into each of them, a thousand locals that
/// differ by the way taken: a million values to keep apart.
pub fn many_ways() -> Vec<u8> {
    const N: u32 = 1000;
    let increment = |local| {
        [
            code::get(local),
            code::number(1),
            vec![code::ADD],
            code::set(local),
        ]
        .concat()
    };
    let jumps: Vec<u8> = [vec![0x0e], leb128(N - 1)]
        .concat()
        .into_iter()
        .chain((0..N).flat_map(leb128))
        .collect();
    let blocks: Vec<u8> = (0..N)
        .flat_map(|local| [vec![code::END], increment(local)].concat())
        .collect();
    let sum: Vec<u8> = (1..N)
        .flat_map(|local| [code::get(local), vec![code::ADD]].concat())
        .collect();
    code::body(
        N + 1,
        &[
            &code::BLOCK.repeat(N as usize),
            &code::get(N),
            &jumps,
            &blocks,
            &code::get(0),
            &sum,
            &[code::DROP],
        ],
    )
}

/// 300 nested loops that carry 1,000 locals: ten kilobytes.
pub fn nested_loops() -> Vec<u8> {
    const LOOPS: usize = 300;
    const LOCALS: u32 = 1000;
    let increments: Vec<u8> = (0..LOCALS)
        .flat_map(|local| {
            let next = (local + 1) % LOCALS;
            [
                code::get(local),
                code::get(next),
                vec![code::ADD],
                code::set(local),
            ]
            .concat()
        })
        .collect();
    let back = [code::get(0), code::branch_if(0), vec![code::END]].concat();
    code::body(
        LOCALS,
        &[&code::LOOP.repeat(LOOPS), &increments, &back.repeat(LOOPS)],
    )
}

/// A small function; ten bytes of a module each.
pub fn small_function(i: u32) -> Vec<u8> {
    let number = code::number((i % 64) as i32);
    code::body(0, &[&number, &[code::DROP], &number, &[code::DROP]])
}

/// The same component with another version: that of `n`, digit by digit.
pub fn numbered(component: &[u8], n: u32) -> Vec<u8> {
    const VERSION: &[u8] = b"0.1.0";
    assert!(n < 1000);
    let version = format!("{}.{}.{}", n / 100, n / 10 % 10, n % 10);
    let mut numbered = component.to_vec();
    let mut n_replaced = 0;
    for at in 1..component.len() - VERSION.len() {
        // Not where the contract's version stands.
        if component[at..].starts_with(VERSION) && component[at - 1] != b'@' {
            numbered[at..at + VERSION.len()].copy_from_slice(version.as_bytes());
            n_replaced += 1;
        }
    }
    assert_eq!(n_replaced, 1, "the version occurs once");
    numbered
}

/// A binary with each occurrence of `part` replaced by as many other bytes.
pub fn replaced(binary: &[u8], part: &str, other: &str) -> Vec<u8> {
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
    out.extend(sized(content));
}

fn sized(content: &[u8]) -> Vec<u8> {
    [&leb128(content.len() as u32)[..], content].concat()
}

fn read_name(bytes: &[u8]) -> (&str, &[u8]) {
    let (size, after) = read_leb128(bytes);
    let (name, after) = after.split_at(size as usize);
    (std::str::from_utf8(name).unwrap(), after)
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
