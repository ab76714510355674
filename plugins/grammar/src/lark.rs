//! What of Lark's syntax cannot be honoured here.

use llguidance::earley::lexerspec::LexerSpec;

/// Refuses what would escape the checks of a JSON Schema, and what refers to
/// other grammars or to tokens without text.
pub(crate) fn check_text(grammar: &str) -> Result<(), String> {
    let code = without_literals(grammar);
    if code.contains("%json") {
        return Err("`%json` is not supported: use json_schema".to_owned());
    }
    if code.contains('@') {
        return Err("references to other grammars (`@`) are not supported".to_owned());
    }
    // As an attribute, not as the name of a rule.
    let mut after_name = code.split("temperature").skip(1);
    if after_name.any(|rest| rest.trim_start().starts_with('=')) {
        return Err("the attribute `temperature` is not supported".to_owned());
    }
    if code.contains('<') {
        return Err("special tokens (`<…>`) are not supported".to_owned());
    }
    Ok(())
}

/// Refuses what the engine leaves to its caller.
pub(crate) fn check_compiled(lexer: &LexerSpec) -> Result<(), String> {
    let unsupported = [
        (lexer.has_max_tokens, "the attribute `max_tokens`"),
        (
            lexer.has_stop,
            "the attribute `stop`, whose text would have to be taken back,",
        ),
    ];
    match unsupported.iter().find(|(found, _)| *found) {
        Some((_, what)) => Err(format!("{what} is not supported")),
        None => Ok(()),
    }
}

/// The grammar without what its strings, regular expressions and comments
/// contain.
fn without_literals(grammar: &str) -> String {
    let mut code = String::new();
    let mut rest = grammar.chars().peekable();
    while let Some(c) = rest.next() {
        code.push(c);
        match c {
            '#' => while rest.next_if(|&c| c != '\n').is_some() {},
            '/' if rest.peek() == Some(&'/') => while rest.next_if(|&c| c != '\n').is_some() {},
            '"' | '/' => {
                while let Some(inner) = rest.next_if(|&c| c != '\n') {
                    if inner == '\\' {
                        rest.next();
                    } else if inner == c {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::{check_text, without_literals};

    #[test]
    fn literals_and_comments_are_left_out() {
        let grammar = "start: \"a\\\"%json\" /b\\/@/ c // @ %json\n# @\nc: \"d\"";
        assert_eq!(without_literals(grammar), "start: \" / c /\n#\nc: \"");
        assert_eq!(check_text(grammar), Ok(()));
    }

    #[test]
    fn other_grammars_are_refused() {
        assert!(check_text("start: %json {}").is_err_and(|error| error.contains("%json")));
        assert!(check_text("start: \"x\" @other").is_err_and(|error| error.contains('@')));
        let rule = "start: temperature\ntemperature: \"a\"";
        assert_eq!(check_text(rule), Ok(()));
        let attribute = "start: a\na[temperature = 1]: \"a\"";
        assert!(check_text(attribute).is_err_and(|error| error.contains("temperature")));
        assert!(check_text("start: <[0]>").is_err_and(|error| error.contains("special")));
    }
}
