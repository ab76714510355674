#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, Some("<bos>".into()), Some("<eos>".into())).unwrap()
}

fn render(source: &str, messages: &Json) -> Result<String, TemplateError> {
    template(source).render(&ChatInput {
        messages: messages.as_array().unwrap(),
        add_generation_prompt: true,
        ..ChatInput::default()
    })
}

const ALTERNATING: &str = "{{ bos_token }}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}[{{ message['content'] }}]{% endfor %}";

#[test]
fn the_templates_own_error_is_kept() {
    let twice = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let refusal = "Conversation roles must alternate user/assistant/user/assistant/...";
    let error = render(ALTERNATING, &twice).unwrap_err();
    assert_eq!(error, TemplateError::Raised(refusal.into()));
    assert!(error.to_string().contains(refusal));
    let system = json!([{"role": "system", "content": "a"}]);
    assert_eq!(
        render(ALTERNATING, &system),
        Err(TemplateError::Raised(refusal.into()))
    );
    // A refusal changes nothing for the next chat.
    let fine = json!([{"role": "user", "content": "a"}]);
    assert_eq!(render(ALTERNATING, &fine).unwrap(), "<bos>[a]");
}

#[test]
fn odd_messages_are_an_error_or_text_but_never_a_panic() {
    let source = "{% for m in messages %}{{ m.role + ': ' + m.content.strip() }}{% endfor %}";
    assert_eq!(render(source, &json!([])).unwrap(), "");
    for message in [
        json!({"role": "user"}),
        json!({"role": "user", "content": null}),
        json!(3),
    ] {
        let error = render(source, &json!([message])).unwrap_err();
        assert!(
            matches!(error, TemplateError::Render(_)),
            "{message}: {error:?}"
        );
    }
}

#[test]
fn a_wrong_template_is_found_when_it_is_loaded() {
    let error = ChatTemplate::new("{% for m in messages %}", None, None)
        .err()
        .unwrap();
    assert!(matches!(error, TemplateError::Syntax(_)), "{error:?}");
}

#[test]
fn a_template_cannot_loop_for_ever() {
    let loops =
        "{% for a in range(10000) %}{% for b in range(10000) %}{{ a + b }}{% endfor %}{% endfor %}";
    assert_eq!(render(loops, &json!([])), Err(TemplateError::TooLong));
    let grows = "{% set ns = namespace(x='ab') %}{% for a in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    assert_eq!(render(grows, &json!([])), Err(TemplateError::TooLong));
}

#[test]
fn endless_recursion_is_an_error() {
    let source = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}";
    let error = render(source, &json!([])).unwrap_err();
    assert!(matches!(error, TemplateError::Render(_)), "{error:?}");
}

#[test]
fn a_long_chat_stays_within_the_limit_of_work() {
    let source = "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}<|end|>\n{% endfor %}";
    let content = "some words ".repeat(400);
    let message = json!({"role": "user", "content": content});
    let messages = Json::Array(vec![message; 250]);
    let text = render(source, &messages).unwrap();
    assert!(text.len() > 1_000_000);
}

#[test]
fn text_is_not_escaped() {
    let source = "{{ messages[0].content }}{{ messages[0].content | tojson }}";
    let messages = json!([{"role": "user", "content": "<a> & 'b'"}]);
    assert_eq!(render(source, &messages).unwrap(), "<a> & 'b'\"<a> & 'b'\"");
}

#[test]
fn keys_reach_the_template_as_given_and_in_order() {
    let source = "{{ messages | tojson }}";
    let messages = json!([{"role": "user", "zeta": 1, "content": "x", "alpha": null}]);
    assert_eq!(
        render(source, &messages).unwrap(),
        r#"[{"role": "user", "zeta": 1, "content": "x", "alpha": null}]"#
    );
}

#[test]
fn tools_and_documents_are_none_when_absent() {
    let source = "{{ tools is none }} {{ documents is none }} {{ thinking is defined }}";
    assert_eq!(render(source, &json!([])).unwrap(), "True True False");
}

#[test]
fn further_variables_are_given_but_not_those_of_the_request() {
    let source = "{{ enable_thinking }} {{ bos_token }}";
    let render = |extra: Json| {
        template(source).render(&ChatInput {
            extra: extra.as_object(),
            ..ChatInput::default()
        })
    };
    let extra = json!({"enable_thinking": false, "bos_token": "<s>"});
    assert_eq!(render(extra).unwrap(), "False <s>");
    let own = TemplateError::OwnName("messages".into());
    assert_eq!(render(json!({"messages": []})), Err(own));
}

#[test]
fn training_marks_change_no_text() {
    let marked = "{% for m in messages %}\n{%- generation -%} {{ m.content }} {%- endgeneration %}\n{% generation %}\nx\n{% endgeneration %}\n{% endfor %}";
    // What Jinja2 with transformers' tag gives: the blocks' own text.
    let messages = json!([{"role": "assistant", "content": "a"}]);
    assert_eq!(render(marked, &messages).unwrap(), "ax\n");
}

#[test]
fn the_time_is_written_as_asked() {
    let year = render("{{ strftime_now('%Y') }}", &json!([])).unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2024, "{year}");
    let error = render("{{ strftime_now('%!') }}", &json!([])).unwrap_err();
    assert!(matches!(error, TemplateError::Render(_)), "{error:?}");
}

#[test]
fn a_template_of_its_own_may_show_the_tools() {
    let template = template("{{ messages | length }} plain")
        .with_tool_use("{{ messages | length }} {{ tools[0] }}, called as <tool_call>");
    let template = template.unwrap();
    assert_eq!(template.tool_format(), Some(ToolFormat::Hermes));
    let tools = json!(["clock"]);
    let render = |tools| {
        template.render(&ChatInput {
            tools,
            ..ChatInput::default()
        })
    };
    assert_eq!(render(None).unwrap(), "0 plain");
    assert_eq!(
        render(Some(&tools)).unwrap(),
        "0 clock, called as <tool_call>"
    );
}
