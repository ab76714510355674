//! The answer is one of the given texts, each as the tokenizer splits it, and
//! ends there. (`grammar` with `choice` takes every way to split it.)

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, control, edits, export,
    vocabulary,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    choices: Vec<String>,
}

struct MultipleChoice {
    choices: Vec<Vec<TokenId>>,
    end_ids: Vec<TokenId>,
    generated: Vec<TokenId>,
}

#[derive(Debug, PartialEq)]
enum Next {
    Stop,
    Allow(Vec<TokenId>),
}

impl MultipleChoice {
    /// What may follow the generated tokens.
    fn next(&self) -> Next {
        let rests = self.choices.iter();
        let rests = rests.filter_map(|choice| choice.strip_prefix(self.generated.as_slice()));
        let (complete, open): (Vec<_>, Vec<_>) = rests.partition(|rest| rest.is_empty());
        if open.is_empty() {
            return Next::Stop;
        }
        let mut allowed: Vec<_> = open.iter().map(|rest| rest[0]).collect();
        if !complete.is_empty() {
            allowed.extend(&self.end_ids);
        }
        Next::Allow(allowed)
    }
}

impl Plugin for MultipleChoice {
    type Params = Params;

    fn describe() -> Description {
        Description {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            summary: "The answer is one of the given texts.",
            params_schema: include_str!("../schema.json"),
        }
    }

    fn open(params: Params, sequence: SequenceInfo) -> Result<Self, OpenError> {
        let encode = |text: &String| vocabulary::encode(text);
        Ok(Self {
            choices: params.choices.iter().map(encode).collect(),
            end_ids: sequence.end_ids,
            generated: Vec::new(),
        })
    }
}

impl TokenProcessor for MultipleChoice {
    fn plan(&mut self, accepted: &[TokenId]) -> Result<(), String> {
        self.generated.extend_from_slice(accepted);
        match self.next() {
            Next::Stop => control::stop(),
            Next::Allow(ids) => edits::allow(&ids),
        }
        Ok(())
    }
}

export!(TokenProcessor for MultipleChoice);

#[cfg(test)]
mod tests {
    use super::{MultipleChoice, Next};

    /// What may follow where the choices are 5, 5 6 7 and 8 9, and 1 ends.
    fn next(generated: &[u32]) -> Next {
        MultipleChoice {
            choices: vec![vec![5], vec![5, 6, 7], vec![8, 9]],
            end_ids: vec![1],
            generated: generated.to_vec(),
        }
        .next()
    }

    #[test]
    fn tokens_follow_the_choices_and_stop_where_none_goes_on() {
        assert_eq!(next(&[]), Next::Allow(vec![5, 5, 8]));
        assert_eq!(next(&[8]), Next::Allow(vec![9]));
        assert_eq!(next(&[8, 9]), Next::Stop);
    }

    #[test]
    fn a_choice_that_another_continues_may_end() {
        assert_eq!(next(&[5]), Next::Allow(vec![6, 1]));
        assert_eq!(next(&[5, 6, 7]), Next::Stop);
    }
}
