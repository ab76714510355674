//! Chat templates, on messages that a client may send.

use serde_json::{Map, Value};
use sluice::text::{ChatInput, ChatTemplate, TemplateError};

/// Templates that do what those of well-known models do.
const TEMPLATES: [&str; 4] = [
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
     {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] \
     | trim %}{% set loop_messages = messages[1:] %}{% else %}{% set system = '' %}{% set \
     loop_messages = messages %}{% endif %}{% for message in loop_messages %}{% if (message['role'] \
     == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif \
     %}[{{ message['role'] }}] {{ system if loop.first }}{{ message['content'].strip() }}{{ \
     eos_token }}{% endfor %}",
    "{%- if tools %}{{- '# Tools\n' }}{%- for tool in tools %}{{- tool | tojson }}{{- '\n' }}{%- \
     endfor %}{%- endif %}{%- for message in messages %}{%- if message.tool_calls %}{%- for call in \
     message.tool_calls %}{%- set call = call.function or call %}{{- '<tool_call>' ~ call.name ~ \
     (call.arguments | tojson(indent=2)) ~ '</tool_call>' }}{%- endfor %}{%- elif '</think>' in \
     message.content %}{{- message.content.split('</think>')[-1].lstrip('\n') }}{%- else %}{{- \
     message.content }}{%- endif %}{%- endfor %}",
    "{%- set ns = namespace(n=0, last='') %}{%- for message in messages[::-1] %}{%- set ns.n = ns.n \
     + 1 %}{%- if message.role == 'user' and ns.last is not string %}{%- set ns.last = \
     message.content[:20] %}{%- endif %}{{ message | tojson(sort_keys=true, ensure_ascii=true) }}{{ \
     message.items() | list | length }}{%- endfor %}{{ ns.n }}{{ enable_thinking | default(true) \
     }}{{ strftime_now(date_format | default('%d %b %Y')) }}",
];

/// A template's source and, after a zero byte, `messages`, or an object of them
/// with `tools` and `extra`. Without a zero byte all of it is messages, for the
/// templates above.
pub fn chat_template(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    if let Some((source, chat)) = text.split_once('\0') {
        return render(source, &parse(chat));
    }
    let chat = parse(text);
    // All of them, whatever the first says.
    TEMPLATES
        .map(|source| render(source, &chat))
        .contains(&true)
}

struct Chat {
    messages: Vec<Value>,
    tools: Option<Value>,
    extra: Option<Map<String, Value>>,
}

fn parse(text: &str) -> Chat {
    let (messages, tools, extra) = match serde_json::from_str(text) {
        Ok(Value::Object(mut object)) => (
            object.remove("messages").unwrap_or_default(),
            object.remove("tools"),
            object.remove("extra"),
        ),
        Ok(messages) => (messages, None, None),
        Err(_) => (Value::Null, None, None),
    };
    Chat {
        messages: match messages {
            Value::Array(messages) => messages,
            other => vec![other],
        },
        tools,
        extra: match extra {
            Some(Value::Object(extra)) => Some(extra),
            _ => None,
        },
    }
}

/// Whether the template made a text of the chat.
fn render(source: &str, chat: &Chat) -> bool {
    let names = ["<s>", "</s>"].map(|name| Some(name.to_owned()));
    let [bos, eos] = names;
    let template = match ChatTemplate::new(source, bos, eos) {
        Ok(template) => template,
        Err(error) => {
            assert!(matches!(error, TemplateError::Syntax(_)), "{error}");
            return false;
        }
    };
    let input = ChatInput {
        messages: &chat.messages,
        tools: chat.tools.as_ref(),
        add_generation_prompt: true,
        extra: chat.extra.as_ref(),
    };
    let text = template.render(&input);
    assert!(!matches!(text, Err(TemplateError::Panicked(_))), "{text:?}");
    // The time goes on.
    if !source.contains("strftime_now") {
        assert_eq!(template.render(&input), text);
    }
    text.is_ok()
}
