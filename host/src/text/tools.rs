//! Calls of functions that a model writes into its text.

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Whether a token spelled so tells a call from text: it is text to this server,
/// whatever the tokenizer says of it.
pub(super) fn is_marker(token: &str) -> bool {
    token == OPEN || token == CLOSE
}

/// How a model writes calls, by what its chat template tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, between text and
    /// as often as it likes: Qwen, Hermes and many others.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole text, several with `;`
    /// between them: Llama 3.
    Llama,
}

impl ToolFormat {
    /// The one that a chat template asks for, if it shows tools at all.
    pub fn of_template(source: &str) -> Option<Self> {
        if !source.contains("tools") {
            None
        } else if source.contains(OPEN) {
            Some(Self::Hermes)
        } else if source.contains("ipython") || source.contains("python_tag") {
            Some(Self::Llama)
        } else {
            None
        }
    }

    /// What stands before the JSON of a call.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Hermes => "<tool_call>\n",
            Self::Llama => "",
        }
    }

    /// The member of a call that has its arguments.
    pub fn arguments_key(self) -> &'static str {
        match self {
            Self::Hermes => "arguments",
            Self::Llama => "parameters",
        }
    }
}

/// A call, as the model wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// JSON; without its end where the text ended in the middle.
    pub arguments: String,
}

/// What some text came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// To be shown.
    pub text: String,
    pub calls: Vec<ToolCall>,
}

impl Parsed {
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.calls.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space came yet.
    Start,
    Text,
    Call,
    /// White space after a call.
    After,
    /// The one call that may be has been made.
    Done,
}

/// Tells calls from text while the text grows. What looks like a call and is
/// none is text, to the last character; white space around calls is dropped.
#[derive(Clone, Debug)]
pub struct ToolStream {
    format: ToolFormat,
    /// Whether there may be several calls.
    parallel: bool,
    state: State,
    /// Text of which it is not known yet what it is.
    held: String,
    /// White space before a call, which is shown if that turns out to be none.
    blank: String,
    n_calls: usize,
}

impl ToolStream {
    pub fn new(format: ToolFormat, parallel: bool) -> Self {
        Self {
            format,
            parallel,
            state: State::Start,
            held: String::new(),
            blank: String::new(),
            n_calls: 0,
        }
    }

    /// Takes the text that comes next.
    pub fn push(&mut self, text: &str) -> Parsed {
        let mut parsed = Parsed::default();
        self.held.push_str(text);
        match self.format {
            ToolFormat::Hermes => while self.advance_hermes(&mut parsed) {},
            ToolFormat::Llama => self.advance_llama(&mut parsed),
        }
        self.n_calls += parsed.calls.len();
        parsed
    }

    /// Ends the text. A call without its end is one if its name is there.
    pub fn finish(&mut self) -> Parsed {
        let held = std::mem::take(&mut self.held);
        let mut parsed = Parsed::default();
        match (self.state, self.format) {
            (State::Done | State::After, _) => {}
            (State::Call, ToolFormat::Llama) => parsed = llama_calls(&held, self.parallel),
            (State::Call, ToolFormat::Hermes) => {
                let object = Object::scan(&held);
                let whole = object.whole().map(|(call, _)| call);
                match whole.or_else(|| object.partial()) {
                    Some(call) => parsed.calls.push(call),
                    None => parsed.text = format!("{}{OPEN}{held}", self.blank),
                }
            }
            (State::Start | State::Text, _) => parsed.text = held,
        }
        self.state = State::Done;
        self.n_calls += parsed.calls.len();
        parsed
    }

    /// Whether nothing can come any more.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Calls so far.
    pub fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Goes on to the next state, if there is enough text for that.
    fn advance_hermes(&mut self, parsed: &mut Parsed) -> bool {
        match self.state {
            State::Done => {
                self.held.clear();
                false
            }
            State::Start | State::Text => {
                if let Some(at) = self.held.find(OPEN) {
                    let text = self.held[..at].trim_end();
                    parsed.text.push_str(text);
                    self.blank = self.held[text.len()..at].to_owned();
                    self.held.drain(..at + OPEN.len());
                    self.state = State::Call;
                    return true;
                }
                let sure = self.held.len() - beginning_of(OPEN, &self.held);
                let sure = self.held[..sure].trim_end().len();
                parsed.text.extend(self.held.drain(..sure));
                if sure > 0 {
                    self.state = State::Text;
                }
                false
            }
            State::After => {
                let blank = self.held.len() - self.held.trim_start().len();
                self.held.drain(..blank);
                if !self.held.is_empty() {
                    self.state = State::Text;
                }
                !self.held.is_empty()
            }
            State::Call => {
                let object = Object::scan(&self.held);
                let rest = object.end.map(|end| self.held[end..].trim_start());
                match (object.whole(), rest) {
                    (Some((call, _)), Some(rest)) if rest.starts_with(CLOSE) => {
                        let end = self.held.len() - rest.len() + CLOSE.len();
                        parsed.calls.push(call);
                        self.held.drain(..end);
                        self.state = if self.parallel {
                            State::After
                        } else {
                            State::Done
                        };
                    }
                    (Some(_), Some(rest)) if CLOSE.starts_with(rest) => return false,
                    (None, None) if !object.broken => return false,
                    _ => {
                        parsed.text.push_str(&self.blank);
                        parsed.text.push_str(OPEN);
                        self.state = State::Text;
                    }
                }
                true
            }
        }
    }

    fn advance_llama(&mut self, parsed: &mut Parsed) {
        if self.state == State::Start {
            self.state = match self.held.trim_start().chars().next() {
                None => return,
                Some('{') => State::Call,
                Some(_) => State::Text,
            };
        }
        match self.state {
            State::Text => parsed.text = std::mem::take(&mut self.held),
            State::Call if !self.parallel => {
                let Some((call, end)) = Object::scan(&self.held).whole() else {
                    return;
                };
                match self.held[end..].trim_start().chars().next() {
                    // It is one if nothing comes, too.
                    None => {}
                    Some(';' | '{') => {
                        parsed.calls.push(call);
                        self.state = State::Done;
                    }
                    Some(_) => {
                        parsed.text = std::mem::take(&mut self.held);
                        self.state = State::Text;
                    }
                }
            }
            State::Done => self.held.clear(),
            _ => {}
        }
    }
}

/// The calls that a text consists of, the last one perhaps cut; the text itself
/// if it has anything else.
fn llama_calls(text: &str, parallel: bool) -> Parsed {
    let mut calls = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if rest.is_empty() {
            break;
        }
        let object = Object::scan(rest);
        if let Some((call, end)) = object.whole() {
            calls.push(call);
            rest = &rest[end..];
        } else if let Some(call) = object.partial() {
            calls.push(call);
            break;
        } else {
            return Parsed {
                text: text.to_owned(),
                calls: Vec::new(),
            };
        }
    }
    if !parallel {
        calls.truncate(1);
    }
    Parsed {
        text: String::new(),
        calls,
    }
}

/// How many bytes at the end of `text` may become `marker`.
fn beginning_of(marker: &str, text: &str) -> usize {
    (1..marker.len())
        .rev()
        .find(|&n| text.ends_with(&marker[..n]))
        .unwrap_or(0)
}

/// A JSON object that may have no end yet.
#[derive(Default)]
struct Object<'a> {
    text: &'a str,
    name: Option<String>,
    arguments: Option<&'a str>,
    /// Where it ends; none if the text does before.
    end: Option<usize>,
    /// Whether it is no object at all.
    broken: bool,
}

impl<'a> Object<'a> {
    fn scan(text: &'a str) -> Self {
        let mut object = Self {
            text,
            ..Self::default()
        };
        let start = skip_blank(text, 0);
        match text[start..].chars().next() {
            Some('{') => object.members(start + 1),
            first => object.broken = first.is_some(),
        }
        object
    }

    /// Reads members from `at` on, as far as they go.
    fn members(&mut self, mut at: usize) {
        let text = self.text;
        loop {
            at = skip_blank(text, at);
            match text[at..].chars().next() {
                None => return,
                Some('}') => {
                    self.end = Some(at + 1);
                    return;
                }
                Some(',') => {
                    at += 1;
                    continue;
                }
                Some('"') => {}
                Some(_) => {
                    self.broken = true;
                    return;
                }
            }
            let Some(key_end) = value_end(text, at) else {
                return;
            };
            let key = serde_json::from_str::<String>(&text[at..key_end]).unwrap_or_default();
            at = skip_blank(text, key_end);
            if !text[at..].starts_with(':') {
                self.broken = at < text.len();
                return;
            }
            at = skip_blank(text, at + 1);
            let end = value_end(text, at);
            let value = &text[at..end.unwrap_or(text.len())];
            match (key.as_str(), end) {
                ("name", Some(_)) => self.name = serde_json::from_str(value).ok(),
                ("arguments" | "parameters", _) => self.arguments = Some(value),
                _ => {}
            }
            match end {
                Some(end) => at = end,
                None => return,
            }
        }
    }

    /// The call that it is, and where it ends.
    fn whole(&self) -> Option<(ToolCall, usize)> {
        let end = self.end?;
        serde_json::from_str::<serde::de::IgnoredAny>(&self.text[..end]).ok()?;
        let call = ToolCall {
            name: self.name.clone()?,
            arguments: self.arguments.map_or("{}".into(), decoded),
        };
        Some((call, end))
    }

    /// The call that it was going to be.
    fn partial(self) -> Option<ToolCall> {
        let cut = self.end.is_none() && !self.broken;
        Some(ToolCall {
            name: self.name.filter(|_| cut)?,
            arguments: self.arguments.map_or_else(String::new, decoded),
        })
    }
}

/// Arguments as JSON: some models write them as a string of JSON.
fn decoded(arguments: &str) -> String {
    serde_json::from_str::<String>(arguments).unwrap_or_else(|_| arguments.trim_end().to_owned())
}

fn skip_blank(text: &str, at: usize) -> usize {
    text.len() - text[at..].trim_start().len()
}

/// Where the JSON value that begins at `start` ends; none if the text ends
/// before, or it could go on.
fn value_end(text: &str, start: usize) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate().skip(start) {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    in_string = false;
                    if depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' if depth == 0 => return Some(at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
#[path = "tools_tests.rs"]
mod tests;
