//! Functions that the model may call. The model's answers are the chat's last
//! message here: it is repeated, letter for letter.

use std::sync::OnceLock;

use axum::http::StatusCode;
use serde_json::{Value, json};
use sluice::engine::{EngineConfig, TokenId};

use super::server::{Answer, Server, Setup};

const CHAT: &str = "/v1/chat/completions";
/// Ends the prompt.
const TURN: TokenId = 2;
const EOS: TokenId = 1;
/// Another end id, as models have for the end of a call.
const END_OF_CALL: TokenId = 0;
/// A `>`, by which a call ends.
const BRACKET: TokenId = b'>' as TokenId + 3;

/// Repeats what stands before the turn: the model's part of the script. Like a
/// real model it ends a call with an id of its own.
fn repeat(context: &[TokenId]) -> Vec<f32> {
    let turn = context.iter().position(|&id| id == TURN).unwrap();
    let start = context[..turn].iter().rposition(|&id| id == 3);
    let script = &context[start.map_or(0, |at| at + 1)..turn];
    let next = script.get(context.len() - turn - 1).copied();
    let mut row = vec![0.0; 131];
    let end = if script.last() == Some(&BRACKET) {
        END_OF_CALL
    } else {
        EOS
    };
    row[next.unwrap_or(end) as usize] = 10.0;
    row
}

/// Shows tools, and the last message after a separator.
fn template(hint: &str) -> String {
    format!(
        "{{% for tool in tools or [] %}}{hint}{{{{ tool.function.name }}}}{{% endfor %}}\
         {{% for m in messages[:-1] %}}{{{{ m.content }}}}\
         {{% for c in m.tool_calls or [] %}}{{{{ c.function.arguments.city }}}}{{% endfor %}}\
         {{% endfor %}}\u{2}{{{{ messages[-1].content }}}}\u{1}"
    )
}

fn setup(template: String) -> Setup {
    drafting(template, 0)
}

fn drafting(template: String, draft_rows: usize) -> Setup {
    // Each ASCII character is a token: 3 bytes of control come first.
    let mut pieces: Vec<Vec<u8>> = vec![b"<eoc>".into(), b"<eos>".into(), vec![1], vec![2]];
    pieces.extend((1..128).map(|byte| if byte < 3 { vec![byte, 0] } else { vec![byte] }));
    Setup {
        engine: EngineConfig {
            draft_rows,
            ..EngineConfig::default()
        },
        context_length: 2048,
        script: repeat,
        end_of_sequence: vec![END_OF_CALL, EOS],
        pieces,
        template,
        ..Setup::default()
    }
}

fn hermes() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(&setup(template("<tool_call>"))))
}

fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "weather", "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }}])
}

fn body(says: &str, more: &Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": says}], "tools": tools(), "temperature": 0,
    });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

async fn ask(server: &Server, says: &str, more: Value) -> Answer {
    let answer = server.post(CHAT, &body(says, &more)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

#[tokio::test]
async fn a_call_is_told_from_the_text() {
    let answer = ask(hermes(), &format!("Let me look.\n{CALL}"), json!({}))
        .await
        .json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Let me look.");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["type"], "function");
    assert_eq!(
        call["function"],
        json!({"name": "weather", "arguments": "{\"city\": \"Rome\"}"})
    );
    assert!(call["id"].as_str().unwrap().starts_with("call_"));

    let answer = ask(hermes(), &format!("{CALL}\n{CALL}"), json!({}))
        .await
        .json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    let one = json!({"parallel_tool_calls": false});
    let answer = ask(hermes(), &format!("{CALL}\n{CALL}"), one).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    let counted = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(counted, CALL.len() as u64, "it ended there");

    // Tools that the model may not call are not shown to it, nor looked for.
    let none = json!({"tool_choice": "none"});
    let answer = ask(hermes(), CALL, none).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], CALL);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// What a step may bring at once changes nothing.
#[tokio::test]
async fn drafts_end_with_the_one_call_that_may_be() {
    let drafts = Server::start(&drafting(template("<tool_call>"), 8));
    // The template tells the model of earlier calls what it is to repeat.
    let said = format!("{CALL}\n{CALL}\n{CALL}");
    let more = |parallel| {
        json!({
            "messages": [{"role": "user", "content": said}, {"role": "user", "content": said}],
            "parallel_tool_calls": parallel, "logprobs": true,
        })
    };
    let all = ask(&drafts, &said, more(true)).await.json();
    let details = &all["usage"]["completion_tokens_details"];
    assert!(details["accepted_prediction_tokens"].as_u64() > Some(0));
    for server in [hermes(), &drafts] {
        let answer = ask(server, &said, more(false)).await.json();
        assert_eq!(answer["usage"]["completion_tokens"], CALL.len());
        let entries = answer["choices"][0]["logprobs"]["content"].as_array();
        assert_eq!(entries.unwrap().len(), CALL.len());
    }
}

#[tokio::test]
async fn streamed_calls_come_whole_and_text_as_it_is_known() {
    let more = json!({"stream": true, "logprobs": true});
    let answer = ask(hermes(), &format!("Look. {CALL}"), more).await;
    let mut events = answer.events();
    assert_eq!(events.pop(), Some("[DONE]"));
    let chunks: Vec<Value> = events
        .iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
    let text: String = deltas()
        .filter_map(|delta| delta["content"].as_str())
        .collect();
    assert_eq!(text, "Look.");
    assert!(
        deltas().all(|delta| delta["content"] != ""),
        "{}",
        answer.text
    );
    let calls: Vec<_> = deltas()
        .filter_map(|delta| delta["tool_calls"].as_array())
        .collect();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0][0]["index"], 0);
    assert_eq!(calls[0][0]["function"]["arguments"], "{\"city\": \"Rome\"}");
    let last = &chunks.last().unwrap()["choices"][0];
    assert_eq!(last["finish_reason"], "tool_calls");
    // Every token has its entry, once.
    let entries = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    let tokens: String = entries
        .flatten()
        .map(|entry| entry["token"].as_str().unwrap())
        .collect();
    assert_eq!(tokens, format!("Look. {CALL}"));
}

#[tokio::test]
async fn a_call_that_is_cut_has_the_arguments_so_far() {
    let cut = CALL.find("Rome").unwrap() + 2;
    for stream in [false, true] {
        let more = json!({"max_tokens": cut, "stream": stream});
        let answer = ask(hermes(), CALL, more).await;
        let (call, reason) = if stream {
            let mut events = answer.events();
            assert_eq!(events.pop(), Some("[DONE]"));
            let chunks: Vec<Value> = events
                .iter()
                .map(|e| serde_json::from_str(e).unwrap())
                .collect();
            let mut calls = chunks
                .iter()
                .map(|c| &c["choices"][0]["delta"]["tool_calls"][0]);
            let call = calls.find(|call| !call.is_null()).unwrap().clone();
            (
                call,
                chunks.last().unwrap()["choices"][0]["finish_reason"].clone(),
            )
        } else {
            let choice = answer.json()["choices"][0].take();
            (
                choice["message"]["tool_calls"][0].clone(),
                choice["finish_reason"].clone(),
            )
        };
        assert_eq!(reason, "length");
        assert_eq!(call["function"]["name"], "weather");
        assert_eq!(call["function"]["arguments"], "{\"city\": \"Ro");
    }
}

#[tokio::test]
async fn the_whole_text_is_a_call_where_the_template_says_so() {
    let server = Server::start(&setup(template("Environment: ipython")));
    let call = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}";
    let answer = ask(&server, call, json!({})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["arguments"],
        "{\"city\": \"Rome\"}"
    );
    // Llama's templates refuse a message of two calls, so one is what is made
    // unless more are asked for.
    let two = format!("{call}; {call}");
    for (more, n) in [(json!({}), 1), (json!({"parallel_tool_calls": true}), 2)] {
        let answer = ask(&server, &two, more).await.json();
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array();
        assert_eq!(calls.unwrap().len(), n);
    }
    let answer = ask(&server, "It is {warm}.", json!({})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "It is {warm}.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

/// Two tools. Where the model's own text is no call, the first character of
/// each that may be wins: `clock` before `weather`, `Oslo` before `Rome`.
fn two_tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "$defs": {"City": {"enum": ["Rome", "Oslo"]}},
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
        }}},
        {"type": "function", "function": {"name": "clock"}},
    ])
}

#[tokio::test]
async fn a_call_can_be_forced() {
    let weather = json!({"type": "function", "function": {"name": "weather"}});
    let llama = Server::start(&setup(template("Environment: ipython")));
    let (rome, oslo) = ("{\"city\": \"Rome\"}", "{\"city\": \"Oslo\"}");
    for (server, says, choice, name, arguments) in [
        // What it would have called, and what it would not.
        (hermes(), CALL, json!("required"), "weather", rome),
        (hermes(), CALL, weather.clone(), "weather", rome),
        (hermes(), "No.", json!("required"), "clock", "{}"),
        (hermes(), "No.", weather.clone(), "weather", oslo),
        (&llama, "No.", json!("required"), "clock", "{}"),
        (&llama, "No.", weather, "weather", oslo),
    ] {
        let more = json!({"tools": two_tools(), "tool_choice": choice});
        let answer = ask(server, says, more.clone()).await.json();
        let chosen = &answer["choices"][0];
        let expected = json!({"name": name, "arguments": arguments});
        assert_eq!(chosen["finish_reason"], "tool_calls", "{more}");
        assert_eq!(chosen["message"]["content"], Value::Null, "{more}");
        let calls = chosen["message"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), 1, "{more}");
        assert_eq!(calls[0]["function"], expected, "{more}");

        let mut streamed = more;
        streamed["stream"] = true.into();
        let answer = ask(server, says, streamed).await;
        let events = answer.events();
        let chunks = events[..events.len() - 1].iter();
        let chunks: Vec<Value> = chunks.map(|e| serde_json::from_str(e).unwrap()).collect();
        let mut calls = chunks
            .iter()
            .map(|c| &c["choices"][0]["delta"]["tool_calls"]);
        let call = calls.find(|calls| !calls.is_null()).unwrap();
        assert_eq!(call[0]["function"], expected, "{}", answer.text);
        let last = &chunks.last().unwrap()["choices"][0];
        assert_eq!(last["finish_reason"], "tool_calls");
    }
}

/// The prompt ends within the call that is forced; the completion is its JSON.
#[tokio::test]
async fn a_forced_call_is_opened_by_the_prompt_and_counted_without_its_marks() {
    let free = ask(hermes(), CALL, json!({})).await.json();
    let forced = ask(hermes(), CALL, json!({"tool_choice": "required"})).await;
    assert_eq!(forced.header("x-sluice-ignored"), None);
    let forced = forced.json();
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        prompt(&forced),
        prompt(&free) + "<tool_call>\n".len() as u64
    );
    let json = CALL.lines().nth(1).unwrap();
    assert_eq!(forced["usage"]["completion_tokens"], json.len());
    // One that is cut is what there is of it.
    let cut = json.find("Rome").unwrap() + 2;
    let more = json!({"tool_choice": "required", "max_tokens": cut});
    let answer = ask(hermes(), CALL, more).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], "{\"city\": \"Ro");
    // Strict is what a forced call always is.
    let strict = json!({"tool_choice": "required", "tools": [{"type": "function", "function":
        {"name": "weather", "strict": true, "parameters": tools()[0]["function"]["parameters"]}}]});
    let answer = ask(hermes(), CALL, strict).await;
    assert_eq!(answer.header("x-sluice-ignored"), None);
}

#[tokio::test]
async fn a_conversation_with_calls_goes_on() {
    let body = json!({
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": null, "tool_calls": [{
                "id": "call_1", "type": "function",
                "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"},
            }]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            {"role": "user", "content": "Say it."},
        ],
        "tools": tools(), "temperature": 0,
    });
    let answer = hermes().post(CHAT, &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let answer = answer.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "Say it.");
    // What the model was told: the tool, the texts, the arguments, two marks.
    let told = "<tool_call>weatherWeather?Romesunny\u{2}Say it.\u{1}";
    assert_eq!(answer["usage"]["prompt_tokens"], told.len());
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused() {
    let function = |function: Value| json!({"tools": [{"type": "function", "function": function}]});
    for (more, code, param) in [
        (
            json!({"tool_choice": {"type": "function", "function": {"name": "clock"}}}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": {"type": "function"}}),
            "invalid_value",
            "tool_choice.function.name",
        ),
        (
            json!({"tool_choice": {"type": "allowed_tools"}}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": "required", "tools": []}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": "required", "tools": null}),
            "invalid_value",
            "tool_choice",
        ),
        (
            json!({"tool_choice": "required", "guided_regex": "a"}),
            "conflicting_fields",
            "guided_regex",
        ),
        (
            json!({"tool_choice": "required", "chain": [{"plugin": "sampler"}],
                "temperature": null}),
            "conflicting_fields",
            "tool_choice",
        ),
        (
            json!({"tool_choice": "required", "min_tokens": 3}),
            "conflicting_fields",
            "min_tokens",
        ),
        (
            json!({"tool_choice": "required", "tools": [{"type": "function", "function":
                {"name": "f", "parameters": {"not": {}}}}]}),
            "invalid_value",
            "tools",
        ),
        (
            json!({"tool_choice": "maybe"}),
            "invalid_value",
            "tool_choice",
        ),
        (json!({"tools": "all"}), "invalid_value", "tools"),
        (json!({"tools": ["weather"]}), "invalid_value", "tools[0]"),
        (
            json!({"tools": [{"type": "web_search"}]}),
            "invalid_value",
            "tools[0].type",
        ),
        (
            json!({"tools": [{"type": "function"}]}),
            "invalid_value",
            "tools[0].function",
        ),
        (
            function(json!({})),
            "invalid_value",
            "tools[0].function.name",
        ),
        (
            function(json!({"name": "f", "parameters": []})),
            "invalid_value",
            "tools[0].function.parameters",
        ),
        (
            json!({"parallel_tool_calls": "no"}),
            "invalid_value",
            "parallel_tool_calls",
        ),
        (
            json!({"response_format": {"type": "json_object"}}),
            "conflicting_fields",
            "response_format",
        ),
    ] {
        let answer = hermes().post(CHAT, &body("a", &more)).await;
        assert_eq!(
            answer.status,
            StatusCode::BAD_REQUEST,
            "{more}: {}",
            answer.text
        );
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!(code), &json!(param)),
            "{more}"
        );
    }
    // A model that is shown no tools could not call them.
    let answer = Server::shared().post(CHAT, &body("a\n", &json!({}))).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    let error = answer.json()["error"].take();
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("unsupported_field"), &json!("tools"))
    );
    for harmless in [
        json!({"tools": []}),
        json!({"tools": null, "tool_choice": "auto", "parallel_tool_calls": true}),
        json!({"tool_choice": "none"}),
    ] {
        let answer = Server::shared().post(CHAT, &body("a\n", &harmless)).await;
        assert_eq!(answer.status, StatusCode::OK, "{harmless}: {}", answer.text);
    }
    let strict = function(json!({"name": "f", "strict": true}));
    let answer = hermes().post(CHAT, &body("a", &strict)).await;
    assert_eq!(
        answer.header("x-sluice-ignored"),
        Some("tools.function.strict")
    );
}
