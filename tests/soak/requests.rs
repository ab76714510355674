//! Generation requests of all kinds, each with what it comes to alone.

use serde_json::{Value, json};

use crate::outcome::Outcome;
use crate::random::Random;

pub const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Uploaded and removed while they are used; each version does the same.
pub const COMING_AND_GOING: [&str; 3] = ["force", "counter", "boost"];

/// A request and, once it was asked alone, what it came to.
pub struct Ask {
    pub path: &'static str,
    pub body: Value,
    pub alone: Outcome,
}

impl Ask {
    /// Whether a plugin that it names may be gone.
    pub fn may_lack_a_plugin(&self) -> bool {
        self.names(&COMING_AND_GOING)
    }

    /// Whether a plugin that it names fails, and may be disabled therefore.
    pub fn may_meet_a_disabled_plugin(&self) -> bool {
        self.names(&["misbehave-token", "misbehave-logits", "misbehave-sampler"])
    }

    fn names(&self, plugins: &[&str]) -> bool {
        let stages = ["processors", "chain"].map(|field| self.body[field].as_array());
        let mut stages = stages.into_iter().flatten().flatten();
        stages.any(|stage| plugins.iter().any(|plugin| stage["plugin"] == *plugin))
    }

    /// The body of the same request, streamed.
    pub fn streamed(&self, with_usage: bool) -> Value {
        let mut body = self.body.clone();
        body["stream"] = true.into();
        if with_usage {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

const BEGINNINGS: [&str; 8] = [
    "Once upon a time",
    "The three primary colours are",
    "def fibonacci(n):\n",
    "In 1969, humans first walked on the Moon. ",
    "Dear Sir or Madam,\n\n",
    "The recipe needs two eggs, ",
    "Жили-были старик со старухой",
    "1, 1, 2, 3, 5, 8,",
];

const STORY: &str =
    "In a harbour town at the edge of the cold sea there lived a keeper of clocks. ";

/// `n` requests, every kind in turn.
pub fn pool(seed: u64, n: usize) -> Vec<Ask> {
    (0..n)
        .map(|i| {
            let mut random = Random::new(seed, 1_000_000 + i as u64);
            let (path, body) = request(i % KINDS, &mut random);
            Ask {
                path,
                body,
                alone: Outcome::default(),
            }
        })
        .collect()
}

const KINDS: usize = 24;

fn request(kind: usize, random: &mut Random) -> (&'static str, Value) {
    let mut body = json!({
        "prompt": *random.pick(&BEGINNINGS),
        "max_tokens": 4 + random.below(28),
        "temperature": *random.pick(&[0.0, 0.7, 1.0, 1.3]),
        "seed": random.below(1000),
    });
    let mut set = |more: Value| {
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
    };
    match kind {
        0 => set(json!({"temperature": 0})),
        1 => set(json!({"presence_penalty": 1.1, "repetition_penalty": 1.2, "top_p": 0.9})),
        2 => set(json!({"top_k": 30, "xtc_probability": 0.5, "logit_bias": {"28": -5, "30": 2.5}})),
        // Begins as others do.
        3 | 4 => {
            let end = *random.pick(&BEGINNINGS);
            set(json!({"prompt": STORY.repeat(3 + random.below(12)) + end}));
        }
        // A prompt of several chunks.
        5 => {
            let prompt: Vec<u32> = (0..300 + random.below(500))
                .map(|_| 300 + random.below(4000) as u32)
                .collect();
            set(json!({"prompt": prompt, "max_tokens": 6}));
        }
        // Drafts are right here.
        6 => set(json!({
            "prompt": "one two three four ".repeat(12 + random.below(12)), "temperature": 0,
            "max_tokens": 40, "ignore_eos": true,
        })),
        7 => set(json!({"n": 3, "logprobs": 3, "temperature": 1})),
        8 => set(json!({"stop": [" the", "\n", "."], "temperature": 1})),
        9 => set(json!({"echo": true, "logprobs": 1, "max_tokens": 1})),
        10 => set(json!({"prompt": ["Monday, ", "January, ", "One, "], "max_tokens": 8})),
        11 => {
            set(json!({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2,6}"}, "max_tokens": 20}));
        }
        12 => set(json!({
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
                "type": "object", "additionalProperties": false, "required": ["name", "old"],
                "properties": {"name": {"enum": ["Ann", "Ben"]}, "old": {"type": "boolean"}},
            }}}, "max_tokens": 30,
        })),
        13 => set(json!({"dialect": *random.pick(&["vllm", "mlx-lm", "llama.cpp", "hf"])})),
        14 => set(json!({"mirostat": 2, "temperature": 1, "n": 2})),
        15 => set(json!({"dry_multiplier": 0.8, "adaptive_target": 0.3, "temperature": 1})),
        16 => set(json!({"explain": true, "max_tokens": 6, "min_tokens": 3, "top_n_sigma": 1.5})),
        17 => set(json!({"processors": [{"plugin": "force", "params": {"ids": [40, 41, 42]}}]})),
        18 => set(json!({"processors": [
            {"plugin": "boost", "params": {"id": 30 + random.below(40), "value": 6}},
        ]})),
        19 => set(json!({"max_tokens": 12, "temperature": null, "chain": [
            {"plugin": "counter"}, {"plugin": "sampler", "params": {"temperature": 0}},
        ]})),
        20 => set(match random.below(4) {
            0 => json!({"processors": [
                {"plugin": "ban-words", "params": {"words": ["e", "the", " was"]}},
            ]}),
            1 => json!({"processors": [{"plugin": "dice", "params": {"sides": 3, "place": 1}}]}),
            2 => json!({"processors": [{"plugin": "identity", "params": {"row": true}}]}),
            _ => json!({"processors": [
                {"plugin": "slow", "params": {"rounds": 20_000_000}, "on_fault": "wait"},
            ], "max_tokens": 5}),
        }),
        21 => return chat(random),
        22 | 23 => set(faulty(random)),
        _ => {}
    }
    (COMPLETIONS, body)
}

fn chat(random: &mut Random) -> (&'static str, Value) {
    let question = *random.pick(&[
        "What is the capital of France?",
        "Name three fruits.",
        "Write a short poem about rain.",
    ]);
    let mut body = json!({
        "messages": [{"role": "user", "content": question}],
        "temperature": *random.pick(&[0.0, 1.0]), "seed": random.below(1000),
        "max_completion_tokens": 6 + random.below(24),
    });
    if random.chance(50) {
        body["logprobs"] = true.into();
        body["top_logprobs"] = 2.into();
    }
    (CHAT, body)
}

/// One with a stage that fails, or would if it were not skipped.
fn faulty(random: &mut Random) -> Value {
    let fault = match random.below(20) {
        // These hold up everybody for as long as they may.
        0 => ("misbehave-token", "spin"),
        1 => ("misbehave-logits", "flood"),
        n => *[
            ("misbehave-token", "trap"),
            ("misbehave-token", "panic"),
            ("misbehave-token", "recurse"),
            ("misbehave-token", "grow"),
            ("misbehave-token", "nan-edit"),
            ("misbehave-token", "outside-edit"),
            ("misbehave-token", "deny-all"),
            ("misbehave-token", "force-outside"),
            ("misbehave-logits", "nan-row"),
            ("misbehave-logits", "short-row"),
            ("misbehave-logits", "banned-row"),
            ("misbehave-sampler", "outside"),
            ("misbehave-sampler", "recurse"),
            ("misbehave-sampler", "trap"),
            ("misbehave-sampler", "error"),
        ]
        .get(n - 2)
        .unwrap_or(&("misbehave-token", "error")),
    };
    let (plugin, fault) = fault;
    let mut stage = json!({"plugin": plugin, "params": {"fault": fault}});
    if random.chance(80) {
        stage["params"]["after"] = random.below(5).into();
    }
    if plugin == "misbehave-token" && fault == "trap" {
        stage["on_fault"] = "skip".into();
    }
    if plugin == "misbehave-sampler" {
        return json!({"chain": [stage], "temperature": null});
    }
    json!({"processors": [stage]})
}
