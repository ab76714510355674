//! Calls of tools in what a model writes.

use sluice::text::{Parsed, ToolFormat, ToolStream};

use crate::input::Input;

/// A format, whether there may be several calls, where to cut, and the text. It
/// says the same in pieces and as a whole, and loses nothing.
pub fn tool_calls(bytes: &[u8]) -> bool {
    let mut input = Input::new(bytes);
    let format = [ToolFormat::Hermes, ToolFormat::Llama][input.below(2)];
    let parallel = input.below(2) == 1;
    let step = input.below(16) + 1;
    let text = String::from_utf8_lossy(input.rest()).into_owned();

    let whole = parse(format, parallel, [text.as_str()]);
    let mut pieces = Vec::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let end = (step..rest.len()).find(|&at| rest.is_char_boundary(at));
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    assert_eq!(parse(format, parallel, pieces), whole);
    assert!(parallel || whole.calls.len() <= 1, "{whole:?}");
    if whole.calls.is_empty() {
        assert_eq!(whole.text, text);
    }
    let mut characters = text.chars();
    let shown_in_order = whole.text.chars().all(|c| characters.any(|of| of == c));
    assert!(shown_in_order, "{whole:?} of {text:?}");
    let markers = text.matches("<tool_call>").count();
    assert!(format == ToolFormat::Llama || whole.calls.len() <= markers);
    !whole.calls.is_empty()
}

fn parse<'a>(
    format: ToolFormat,
    parallel: bool,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Parsed {
    let mut stream = ToolStream::new(format, parallel);
    let mut whole = Parsed::default();
    let mut add = |parsed: Parsed| {
        whole.text.push_str(&parsed.text);
        whole.calls.extend(parsed.calls);
    };
    for piece in pieces {
        add(stream.push(piece));
    }
    add(stream.finish());
    assert_eq!(stream.n_calls(), whole.calls.len());
    whole
}
