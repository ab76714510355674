//! What a request came to, in one form for plain and streamed answers, so that
//! it can be held against that of the request alone.

use serde_json::{Value, json};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    choices: Vec<Choice>,
    /// Tokens of prompt and completion, where they were told.
    usage: Option<[Value; 2]>,
    /// The `error` object.
    pub error: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Choice {
    text: String,
    logprobs: Value,
    finish_reason: Value,
    stop_reason: Value,
}

impl Outcome {
    /// That of a plain answer.
    pub fn of_body(body: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| format!("{e}: {}", String::from_utf8_lossy(body)))?;
        let mut outcome = Self::default();
        outcome.add(&value)?;
        Ok(outcome)
    }

    /// That of the events of a stream, as far as it was read.
    pub fn of_events(events: &[Value]) -> Result<Self, String> {
        let mut outcome = Self::default();
        events.iter().try_for_each(|event| outcome.add(event))?;
        Ok(outcome)
    }

    fn add(&mut self, part: &Value) -> Result<(), String> {
        if let Some(error) = part.get("error") {
            self.error = Some(error.clone());
            return Ok(());
        }
        if let Some(usage) = part.get("usage").filter(|usage| usage.is_object()) {
            let of = |name: &str| usage[name].clone();
            self.usage = Some([of("prompt_tokens"), of("completion_tokens")]);
        }
        let choices = part["choices"].as_array().ok_or(format!("{part}"))?;
        for choice in choices {
            let index = choice["index"].as_u64().ok_or(format!("{choice}"))? as usize;
            while self.choices.len() <= index {
                self.choices.push(Choice::default());
            }
            self.choices[index].add(choice);
        }
        Ok(())
    }

    /// Whether it is what the request comes to alone.
    pub fn check(&self, alone: &Self) -> Result<(), String> {
        let same_error = match (&self.error, &alone.error) {
            (None, None) => true,
            (Some(ours), Some(alone)) => {
                ours["code"] == alone["code"] && ours["message"] == alone["message"]
            }
            _ => false,
        };
        // A stream shows what came before its error; a plain answer does not.
        let same_choices = alone.error.is_some() || self.choices == alone.choices;
        let same_usage = self.usage.is_none() || self.usage == alone.usage;
        if same_error && same_choices && same_usage {
            return Ok(());
        }
        Err(format!("{self:#?}\nbut alone {alone:#?}"))
    }

    /// Whether it is how the request begins alone.
    pub fn check_beginning(&self, alone: &Self) -> Result<(), String> {
        let begins = |(ours, alone): (&Choice, &Choice)| {
            let ended = !ours.finish_reason.is_null();
            let whole = ours == alone;
            alone.text.starts_with(&ours.text) && (whole || !ended)
        };
        if alone.error.is_some()
            || self.choices.len() <= alone.choices.len()
                && self.choices.iter().zip(&alone.choices).all(begins)
        {
            return Ok(());
        }
        Err(format!("{self:#?}\ndoes not begin {alone:#?}"))
    }
}

impl Choice {
    fn add(&mut self, part: &Value) {
        for place in ["/text", "/message/content", "/delta/content"] {
            let text = part.pointer(place).and_then(Value::as_str);
            self.text.push_str(text.unwrap_or_default());
        }
        merge(&mut self.logprobs, &part["logprobs"]);
        for (mine, name) in [
            (&mut self.finish_reason, "finish_reason"),
            (&mut self.stop_reason, "stop_reason"),
        ] {
            if let Some(value) = part.get(name).filter(|value| !value.is_null()) {
                *mine = value.clone();
            }
        }
    }
}

/// Appends the lists of one block of logprobs to those of another.
fn merge(all: &mut Value, part: &Value) {
    match (all, part) {
        (_, Value::Null) => {}
        (all @ Value::Null, part) => *all = part.clone(),
        (Value::Object(all), Value::Object(part)) => {
            for (name, list) in part {
                merge(all.entry(name).or_insert(Value::Null), list);
            }
        }
        (Value::Array(all), Value::Array(part)) => all.extend(part.iter().cloned()),
        (all, part) => *all = json!({"no block of logprobs": [all, part]}),
    }
}

/// The data of each whole event, and whether the last was `[DONE]`.
pub fn events(body: &[u8]) -> Result<(Vec<Value>, bool), String> {
    let text = String::from_utf8_lossy(body);
    let mut events = Vec::new();
    let mut done = false;
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    for event in whole.split("\n\n").filter(|event| !event.is_empty()) {
        if done {
            return Err(format!("after the end: {event}"));
        }
        let Some(data) = event.strip_prefix("data: ") else {
            // A comment keeps the connection alive.
            if event.starts_with(':') {
                continue;
            }
            return Err(format!("no event: {event:?}"));
        };
        if data == "[DONE]" {
            done = true;
        } else {
            events.push(serde_json::from_str(data).map_err(|e| format!("{e}: {data}"))?);
        }
    }
    Ok((events, done))
}

#[test]
fn a_stream_is_held_against_the_plain_answer() {
    let plain = json!({
        "choices": [{"index": 0, "text": "a bc", "finish_reason": "length", "logprobs": {
            "tokens": ["a", " bc"], "token_logprobs": [-1.5, -0.5]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    });
    let alone = Outcome::of_body(plain.to_string().as_bytes()).unwrap();
    let chunk = |text: &str, logprob: f64, end: Option<&str>| {
        json!({"choices": [{"index": 0, "text": text, "finish_reason": end, "logprobs": {
            "tokens": [text], "token_logprobs": [logprob]}}]})
    };
    let begin = chunk("a", -1.5, None);
    let end = chunk(" bc", -0.5, Some("length"));
    let of = |events: &[&Value]| {
        let events: Vec<_> = events.iter().map(|event| (*event).clone()).collect();
        Outcome::of_events(&events).unwrap()
    };
    assert_eq!(of(&[&begin, &end]).check(&alone), Ok(()));
    assert_eq!(of(&[&begin]).check_beginning(&alone), Ok(()));
    assert!(of(&[&begin]).check(&alone).is_err(), "cut");
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}});
    let error = json!({"error": {"code": "plugin_error", "message": "m"}});
    for wrong in [
        &[&chunk("b", -1.5, None), &end][..],
        &[&chunk("a", -1.4, None), &end],
        &[&begin, &chunk(" bc", -0.5, Some("stop"))],
        &[&begin, &end, &usage],
        &[&begin, &end, &error],
    ] {
        assert!(of(wrong).check(&alone).is_err(), "{wrong:?}");
    }
    for wrong in [&chunk("b", -1.5, None), &chunk("a", -1.5, Some("stop"))] {
        assert!(of(&[wrong]).check_beginning(&alone).is_err(), "{wrong}");
    }
}
