#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall {
        name: name.into(),
        arguments: arguments.into(),
    }
}

/// What a text comes to, told in these pieces.
fn parsed(format: ToolFormat, parallel: bool, pieces: &[&str]) -> Parsed {
    let mut stream = ToolStream::new(format, parallel);
    let mut all = Parsed::default();
    for piece in pieces {
        let next = stream.push(piece);
        all.text.push_str(&next.text);
        all.calls.extend(next.calls);
    }
    let last = stream.finish();
    all.text.push_str(&last.text);
    all.calls.extend(last.calls);
    assert_eq!(stream.n_calls(), all.calls.len());
    all
}

const WEATHER: &str = r#"{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}"#;

#[test]
fn calls_of_hermes_are_told_from_the_text_around_them() {
    for (text, shown, calls) in [
        ("Just text < 3.\n", "Just text < 3.\n", vec![]),
        (
            &format!("Let me look.\n<tool_call>\n{WEATHER}\n</tool_call>")[..],
            "Let me look.",
            vec![call("weather", r#"{"city": "Zürich", "days": 2}"#)],
        ),
        (
            &format!(
                "<tool_call>{WEATHER}</tool_call>\n<tool_call>{{\"name\": \"now\"}}</tool_call>\n"
            ),
            "",
            vec![
                call("weather", r#"{"city": "Zürich", "days": 2}"#),
                call("now", "{}"),
            ],
        ),
        (
            &format!("<tool_call>{WEATHER}</tool_call> There."),
            "There.",
            vec![call("weather", r#"{"city": "Zürich", "days": 2}"#)],
        ),
        // Arguments as a string of JSON, and the end marker within a string.
        (
            r#"<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>"#,
            "",
            vec![call("f", r#"{"a": 1}"#)],
        ),
        (
            r#"<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>"#,
            "",
            vec![call("f", r#"{"a": "</tool_call>"}"#)],
        ),
        // No calls: the text comes back whole.
        (
            "<tool_call>nothing</tool_call> x",
            "<tool_call>nothing</tool_call> x",
            vec![],
        ),
        (
            r#"<tool_call>{"arguments": {}}</tool_call>"#,
            r#"<tool_call>{"arguments": {}}</tool_call>"#,
            vec![],
        ),
        ("a <tool_ca", "a <tool_ca", vec![]),
        ("a\n<tool_call>b \n", "a\n<tool_call>b \n", vec![]),
        (
            r#"<tool_call>{"name": "f"} f</tool_call>"#,
            r#"<tool_call>{"name": "f"} f</tool_call>"#,
            vec![],
        ),
        (
            &format!("Write <tool_call> first. <tool_call>{WEATHER}</tool_call>"),
            "Write <tool_call> first.",
            vec![call("weather", r#"{"city": "Zürich", "days": 2}"#)],
        ),
        (
            &format!("<tool_call>{{\"name\": \"f\"}} <tool_call>{WEATHER}</tool_call>"),
            "<tool_call>{\"name\": \"f\"}",
            vec![call("weather", r#"{"city": "Zürich", "days": 2}"#)],
        ),
        // Cut by the length.
        (
            r#"<tool_call>{"name": "f", "arguments": {"city": "Z"#,
            "",
            vec![call("f", r#"{"city": "Z"#)],
        ),
        (r#"<tool_call>{"name": "f", "arg"#, "", vec![call("f", "")]),
        (
            "<tool_call>{\"name\": \"f\"}\n</tool_",
            "",
            vec![call("f", "{}")],
        ),
        (
            r#"<tool_call>{"name": "f"#,
            r#"<tool_call>{"name": "f"#,
            vec![],
        ),
    ] {
        let all = parsed(ToolFormat::Hermes, true, &[text]);
        assert_eq!(
            all,
            Parsed {
                text: shown.into(),
                calls
            },
            "{text}"
        );
    }
}

#[test]
fn calls_of_llama_are_the_whole_text() {
    let one = r#"{"name": "f", "parameters": {"a": [1, "}"]}}"#;
    let two = r#"{"name": "g", "parameters": {}}"#;
    let f = call("f", r#"{"a": [1, "}"]}"#);
    for (text, shown, calls) in [
        (one, "", vec![f.clone()]),
        (&format!("\n{one}; {two}")[..], "", vec![f, call("g", "{}")]),
        ("Hello {name}", "Hello {name}", vec![]),
        (r#"{"answer": 42}"#, r#"{"answer": 42}"#, vec![]),
        (
            &format!("{one} and text"),
            &format!("{one} and text"),
            vec![],
        ),
        ("{not JSON}", "{not JSON}", vec![]),
        (
            r#"{"name": "f", "parameters": {"a": "#,
            "",
            vec![call("f", r#"{"a":"#)],
        ),
    ] {
        let all = parsed(ToolFormat::Llama, true, &[text]);
        assert_eq!(
            all,
            Parsed {
                text: shown.into(),
                calls
            },
            "{text}"
        );
    }
}

#[test]
fn one_call_at_a_time_ends_the_text() {
    let two = format!("<tool_call>{WEATHER}</tool_call>").repeat(2);
    assert_eq!(parsed(ToolFormat::Hermes, false, &[&two]).calls.len(), 1);
    let two = r#"{"name": "g", "parameters": {}}; {"name": "h", "parameters": {}}"#;
    assert_eq!(
        parsed(ToolFormat::Llama, false, &[two]).calls,
        [call("g", "{}")]
    );
}

/// Whether there may be one or several.
#[test]
fn an_object_with_text_after_it_is_no_call_of_llama() {
    let text = r#"{"name": "Bob", "age": 3} is the record."#;
    for parallel in [false, true] {
        let all = parsed(ToolFormat::Llama, parallel, &[text]);
        assert_eq!((all.text.as_str(), all.calls.len()), (text, 0));
    }
}

#[test]
fn the_template_says_the_format() {
    for (source, expected) in [
        ("{% for m in messages %}{% endfor %}", None),
        ("{% if tools %}{{ tools | tojson }}{% endif %}", None),
        (
            "{% if tools %}<tool_call>{% endif %}",
            Some(ToolFormat::Hermes),
        ),
        (
            "{% if tools %}Environment: ipython{% endif %}",
            Some(ToolFormat::Llama),
        ),
    ] {
        assert_eq!(ToolFormat::of_template(source), expected, "{source}");
    }
}

proptest! {
    /// However a text comes in pieces, it comes to the same, and nothing is
    /// taken back.
    #[test]
    fn pieces_do_not_matter(
        parts in proptest::collection::vec(
            proptest::sample::select(vec![
                "<tool_call>", "</tool_call>", "{\"name\": \"f\"", ", \"arguments\": ", "{\"a\": \"é\"}",
                "}", "{", " ", "\n", "text", "<", "tool", "\"", "\\", ";",
            ]),
            0..12,
        ),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
        llama in any::<bool>(),
        parallel in any::<bool>(),
    ) {
        let format = if llama { ToolFormat::Llama } else { ToolFormat::Hermes };
        let text = parts.concat();
        let places: Vec<_> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| *cut.get(&places)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(parsed(format, parallel, &pieces), parsed(format, parallel, &[&text]));
    }
}
