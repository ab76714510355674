//! The real program on the default model, over HTTP: right answers, the same
//! ones alone and in company, and plugins that come and go meanwhile.
#![allow(clippy::unwrap_used)]

#[path = "support/server.rs"]
mod server;

use axum::http::StatusCode;
use serde_json::{Value, json};
use server::{Killable, Server, text};
use std::{collections::BTreeSet, path::PathBuf, time::Duration};

fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(path)
}

fn component(path: &str) -> Vec<u8> {
    std::fs::read(in_repository(path)).unwrap()
}

fn france() -> Value {
    json!({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
    })
}

#[tokio::test]
async fn the_capital_of_france_plain_and_streamed() {
    let server = Server::shared();
    let (status, answer) = server.post("/v1/chat/completions", &france()).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(
        choice["message"]["content"],
        "The capital of France is Paris."
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 37, "completion_tokens": 7, "total_tokens": 44})
    );

    let mut body = france();
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.stream("/v1/chat/completions", &body).await;
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let content: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(content, "The capital of France is Paris.");
    let [.., finish, usage] = &chunks[..] else {
        panic!("{chunks:?}")
    };
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["usage"], Value::Null);
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"], answer["usage"]);
}

/// Sixteen requests that differ in everything a request can differ in.
fn mixed() -> Vec<Value> {
    let prompts = [
        "Once upon a time",
        "The three primary colours are",
        "def fibonacci(n):\n",
        "In 1969, humans first walked on the Moon. ",
    ];
    let temperatures = [0.0, 0.7, 1.0, 1.3];
    (0..16u64)
        .map(|i| {
            let mut body = json!({
                "prompt": prompts[i as usize % 4].repeat(1 + i as usize * 3 % 11),
                "max_tokens": 12 + i * 5 % 17,
                "seed": i as i64 - 3,
                "temperature": temperatures[i as usize / 2 % 4],
            });
            match i % 8 {
                0 => body["presence_penalty"] = 1.1.into(),
                1 => body["top_p"] = 0.9.into(),
                2 => {
                    body["repetition_penalty"] = 1.2.into();
                    body["logit_bias"] = json!({"28": -5, "30": 2.5});
                }
                3 => {
                    body["chain"] = json!([{"plugin": "sampler", "params": {"temperature": 0.9, "min_p": 0.05}}]);
                    body.as_object_mut().unwrap().remove("temperature");
                }
                4 => {
                    body["top_k"] = 30.into();
                    body["xtc_probability"] = 0.5.into();
                    body["frequency_penalty"] = 0.3.into();
                }
                5 => {
                    body["mirostat"] = 2.into();
                    body["n"] = 2.into();
                }
                6 => {
                    body["adaptive_target"] = 0.3.into();
                    body["min_p"] = 0.05.into();
                    body["logprobs"] = 3.into();
                }
                _ => {
                    body["dialect"] = "llama.cpp".into();
                    body["dry_multiplier"] = 0.8.into();
                    body["typical_p"] = 0.9.into();
                    body["dynatemp_range"] = 0.3.into();
                    body["echo"] = true.into();
                    body["logprobs"] = 1.into();
                }
            }
            body
        })
        .collect()
}

#[tokio::test]
async fn sixteen_mixed_requests_get_what_they_get_alone() {
    let server = Server::shared();
    let requests = mixed();
    let mut solo = Vec::new();
    for body in &requests {
        solo.push(server.complete(body).await);
    }
    for round in 0..3u64 {
        let together = requests.iter().zip(0u64..).map(|(body, i)| async move {
            let delay = (i * 37 + round * 101) % 160;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            server.complete(body).await
        });
        let together = futures_util::future::join_all(together).await;
        for ((body, solo), answer) in requests.iter().zip(&solo).zip(&together) {
            assert_eq!(answer["choices"], solo["choices"], "round {round}: {body}");
            assert_eq!(answer["usage"], solo["usage"], "round {round}: {body}");
        }
    }
}

#[tokio::test]
async fn a_seed_decides_and_its_absence_does_not() {
    let server = Server::shared();
    let body = |seed: Value| json!({"prompt": "My favourite", "max_tokens": 25, "seed": seed});
    let mut texts = Vec::new();
    for seed in [0, 1, -1] {
        let first = server.complete(&body(seed.into())).await;
        let again = server.complete(&body(seed.into())).await;
        assert_eq!(first["choices"], again["choices"], "seed {seed}");
        texts.push(text(&first).to_owned());
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 1, "every seed gives {texts:?}");
    let one = server.complete(&body(Value::Null)).await;
    let other = server.complete(&body(Value::Null)).await;
    assert_ne!(text(&one), text(&other), "without a seed");
    let before = server.complete(&body(1.into())).await;
    let restarted = Server::start(&[]);
    let after = restarted.complete(&body(1.into())).await;
    assert_eq!(before["choices"], after["choices"], "after a restart");
}

/// The logprobs that mlx-lm gives the same tokens (`parity/fixture.json`), for
/// tokens of a prompt and for sampled ones.
#[tokio::test]
async fn logprobs_are_those_of_mlx_lm() {
    let fixture = std::fs::File::open(in_repository("tests/parity/fixture.json")).unwrap();
    let fixture: Value = serde_json::from_reader(std::io::BufReader::new(fixture)).unwrap();
    let server = Server::shared();
    for case in &fixture["cases"].as_array().unwrap()[..6] {
        let ids = |name: &str| case[name].as_array().unwrap().clone();
        let (prompt, generated) = (ids("prompt_ids"), ids("generated_ids"));
        let n = generated.len().min(16);
        let expected: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let sum = case["log_sum_exp"][i].as_f64().unwrap();
                let top = case["top_logits"][i].as_array().unwrap();
                top.iter().map(|l| l.as_f64().unwrap() - sum).collect()
            })
            .collect();
        let check = |logprobs: &Value, from: usize| {
            for (i, expected) in expected.iter().enumerate() {
                let own = logprobs["token_logprobs"][from + i].as_f64().unwrap();
                assert!((own - expected[0]).abs() < 5e-4, "{i}: {own}, {expected:?}");
                let listed = logprobs["top_logprobs"][from + i].as_object().unwrap();
                let listed: Vec<_> = listed.values().map(|l| l.as_f64().unwrap()).collect();
                assert_eq!(listed.len(), 5);
                let near = listed
                    .iter()
                    .zip(expected)
                    .all(|(a, b)| (a - b).abs() < 5e-4);
                assert!(near, "{i}: {listed:?}, {expected:?}");
            }
        };
        let text = [&prompt[..], &generated[..n]].concat();
        let body = json!({"prompt": text, "max_tokens": 0, "echo": true, "logprobs": 5});
        let answer = server.complete(&body).await;
        check(&answer["choices"][0]["logprobs"], prompt.len());
        let body = json!({"prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 5});
        let answer = server.complete(&body).await;
        check(&answer["choices"][0]["logprobs"], 0);
    }
}

#[tokio::test]
async fn a_plugin_comes_is_used_and_goes_while_another_request_streams() {
    let server = Server::shared();
    let story = json!({
        "prompt": "The history of the city of Rome begins", "max_tokens": 150,
        "temperature": 0, "repetition_penalty": 1.1,
    });
    let alone = server.complete(&story).await;
    let mut streamed = story.clone();
    streamed["stream"] = true.into();
    let streaming = tokio::spawn(async move {
        let events = server.stream("/v1/completions", &streamed).await;
        events
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str().map(str::to_owned))
            .collect::<String>()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;

    let mut body = france();
    body["processors"] =
        json!([{"plugin": "ban-words", "params": {"words": ["Paris", "capital"]}}]);
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{answer}");

    let (status, uploaded) = server
        .upload(component("examples/dist/ban-words.wasm"))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{uploaded}");
    assert_eq!(uploaded["name"], "ban-words");
    let (status, _) = server
        .upload(component("examples/dist/ban-words.wasm"))
        .await;
    assert_eq!(status, StatusCode::OK, "the same bytes again");
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!content.is_empty());
    assert!(
        !content.contains("Paris") && !content.contains("capital"),
        "{content}"
    );

    // Hot sampling reaches for rare tokenizations; none gets through.
    body["temperature"] = 1.5.into();
    body["max_tokens"] = 60.into();
    body["processors"][0]["params"]["words"] = json!(["e", "the", "France", " is"]);
    for seed in 0..6 {
        body["seed"] = seed.into();
        let (_, answer) = server.post("/v1/chat/completions", &body).await;
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(
            !content.contains('e') && !content.contains(" is"),
            "{content}"
        );
    }

    let (status, _) = server.delete("ban-words").await;
    assert!(status.is_success());
    let (status, answer) = server.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(answer["error"]["code"], "plugin_not_found");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("ban-words")
    );

    assert_eq!(streaming.await.unwrap(), text(&alone));
}

/// A formula changes without the host: the next version of `penalties`
/// counts the prompt, and requests without a version get it.
#[tokio::test]
async fn a_new_version_of_a_default_plugin_is_used_and_the_old_one_stays() {
    // A server of its own: the others must not meet the new version.
    let server = Server::start(&[]);
    let body = |chain: &str| {
        json!({
            "prompt": "one two three one two three one two three one two",
            "max_tokens": 8,
            "chain": [
                {"plugin": chain, "params": {"frequency_penalty": 2, "presence_penalty": 2}},
                {"plugin": "sampler", "params": {"temperature": 0}},
            ],
        })
    };
    let before = server.complete(&body("penalties")).await;
    let (status, uploaded) = server
        .upload(component("tests/guests/dist/mutant-penalties.wasm"))
        .await;
    assert_eq!(status, StatusCode::CREATED, "{uploaded}");
    assert_eq!(uploaded["name"], "penalties");
    assert_eq!(uploaded["version"], "0.1.1");
    let after = server.complete(&body("penalties")).await;
    let pinned = server.complete(&body("penalties@0.1.0")).await;
    assert_ne!(after["choices"], before["choices"]);
    assert_eq!(pinned["choices"], before["choices"]);
}

/// Every way to misbehave that a kind of plugin has, with the words that the
/// error must contain.
const FAULTS: [(&str, &str, &str); 26] = [
    ("misbehave-token", "spin", "longer than its limit"),
    ("misbehave-token", "trap", "unreachable"),
    ("misbehave-token", "panic", "asked to panic"),
    ("misbehave-token", "recurse", "stack"),
    ("misbehave-token", "grow", "memory"),
    ("misbehave-token", "error", "asked to fail"),
    ("misbehave-token", "nan-edit", "NaN"),
    ("misbehave-token", "infinite-edit", "inf"),
    ("misbehave-token", "outside-edit", "49152"),
    ("misbehave-token", "outside-deny", "49152"),
    ("misbehave-token", "zero-divisor", "divisor"),
    ("misbehave-token", "unequal-edit", "1"),
    ("misbehave-token", "deny-all", "last token"),
    ("misbehave-token", "force-nothing", "force"),
    ("misbehave-token", "force-outside", "49152"),
    ("misbehave-token", "decide-twice", "stop"),
    ("misbehave-logits", "spin", "longer than its limit"),
    ("misbehave-logits", "nan-row", "NaN"),
    ("misbehave-logits", "short-row", "49151"),
    ("misbehave-logits", "banned-row", "last token"),
    ("misbehave-logits", "edit-and-row", "row"),
    ("misbehave-sampler", "spin", "longer than its limit"),
    ("misbehave-sampler", "recurse", "stack"),
    ("misbehave-sampler", "outside", "49152"),
    ("misbehave-sampler", "banned", "banned"),
    ("misbehave-sampler", "trap", "unreachable"),
];

#[tokio::test]
async fn a_plugin_can_hurt_only_its_own_request() {
    // These are more faults than any plugin may have.
    let server = &Server::start(&["--plugin-max-faults", "0"]);
    for name in ["misbehave-token", "misbehave-logits", "misbehave-sampler"] {
        let (status, answer) = server
            .upload(component(&format!("tests/guests/dist/{name}.wasm")))
            .await;
        assert!(status.is_success(), "{answer}");
    }
    let neighbour = |i: usize| {
        json!({
            "prompt": format!("Chapter {i}. It was"), "max_tokens": 10, "seed": i,
            "temperature": 0.8, "presence_penalty": 0.5,
        })
    };
    let mut solo = Vec::new();
    for i in 0..7 {
        solo.push(server.complete(&neighbour(i)).await);
    }
    for (plugin, fault, words) in FAULTS {
        for after in [Some(3), None] {
            // Edits and decisions are refused in `open`, for another reason.
            let common = ["spin", "trap", "panic", "recurse", "grow", "error"];
            if after.is_none() && !common.contains(&fault) {
                continue;
            }
            let mut params = json!({"fault": fault});
            if let Some(after) = after {
                params["after"] = after.into();
            }
            let mut faulty = json!({
                "prompt": "The faulty one", "max_tokens": 30,
                "processors": [{"plugin": plugin, "params": params}],
            });
            if plugin != "misbehave-sampler" {
                faulty["temperature"] = 0.into();
            }
            if fault == "banned" {
                faulty["logit_bias"] = json!({"7": -100});
                faulty["ignore_eos"] = true.into();
            }
            let others = futures_util::future::join_all(
                (0..7).map(|i| async move { server.complete(&neighbour(i)).await }),
            );
            let ((status, answer), others) =
                tokio::join!(server.post("/v1/completions", &faulty), others);
            let label = format!("{plugin} {fault} after {after:?}: {answer}");
            assert!(status.is_client_error(), "{status} {label}");
            let error = &answer["error"];
            assert_eq!(error["code"], "plugin_error", "{label}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(plugin), "{label}");
            assert!(message.contains(words), "{words} in {label}");
            for (other, solo) in others.iter().zip(&solo) {
                assert_eq!(other["choices"], solo["choices"], "{label}");
            }
        }
    }
    for name in ["spin-describe", "trap-describe"] {
        let (status, answer) = server
            .upload(component(&format!("tests/guests/dist/{name}.wasm")))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name}: {answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains("describe"),
            "{answer}"
        );
    }
    let (status, _) = server.get("/health").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        server.complete(&neighbour(3)).await["choices"],
        solo[3]["choices"]
    );
}

/// In a stream the fault is an error event, and no `[DONE]` follows.
#[tokio::test]
async fn a_fault_ends_a_stream_with_an_error_event() {
    let server = Server::shared();
    let guest = component("tests/guests/dist/misbehave-token.wasm");
    assert!(server.upload(guest).await.0.is_success());
    let body = json!({
        "prompt": "Once", "max_tokens": 9, "temperature": 0, "stream": true,
        "processors": [{"plugin": "misbehave-token", "params": {"fault": "trap", "after": 2}}],
    });
    let events = server.stream("/v1/completions", &body).await;
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "plugin_error");
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("misbehave-token")
    );
    assert!(!events.iter().any(|event| event == "[DONE]"));
}

/// The context of every call, told by a plugin that reports it in the end.
async fn report(server: &Server, prompt: &[u32], tokens: usize) -> Value {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens + 5, "temperature": 0, "ignore_eos": true,
        "processors": [{"plugin": "recorder", "params": {"report_after": tokens}}],
    });
    let (status, answer) = server.post("/v1/completions", &body).await;
    assert_eq!(answer["error"]["code"], "plugin_error", "{status} {answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    let start = message.find('{').unwrap();
    let end = message.rfind('}').unwrap();
    serde_json::from_str(&message[start..=end]).unwrap()
}

/// Exactly one `plan` for each position and opening, with the whole prompt
/// and every accepted token, the newest included: for one row and for eight,
/// in one prefill chunk and in many, for early and late joiners.
#[tokio::test]
async fn a_plugin_sees_exactly_the_tokens_of_its_sequence() {
    let shared = Server::shared();
    let small = Server::start(&["--prefill-chunk", "16"]);
    for server in [shared, &small] {
        let guest = component("tests/guests/dist/recorder.wasm");
        assert!(server.upload(guest).await.0.is_success());
        let mut expected = Vec::new();
        for alone in [true, false] {
            let reports = (0..8u32).map(|i| async move {
                let prompt: Vec<u32> = (0..20 + i * 23).map(|k| 300 + (k * 7 + i) % 4000).collect();
                if !alone {
                    tokio::time::sleep(Duration::from_millis(u64::from(i) * 40)).await;
                }
                let report = report(server, &prompt, 12 + i as usize).await;
                (prompt, report)
            });
            let reports = if alone {
                let mut all = Vec::new();
                for report in reports {
                    all.push(report.await);
                }
                all
            } else {
                futures_util::future::join_all(reports).await
            };
            for (i, (prompt, report)) in reports.iter().enumerate() {
                assert_eq!(report["prompt"], json!(prompt));
                let calls = report["accepted"].as_array().unwrap();
                assert_eq!(calls.len(), 12 + i + 1, "one call per position: {calls:?}");
                assert_eq!(calls[0], json!([]));
                assert!(
                    calls[1..]
                        .iter()
                        .all(|call| call.as_array().unwrap().len() == 1)
                );
            }
            let tokens: Vec<Value> = reports
                .into_iter()
                .map(|(_, r)| r["accepted"].clone())
                .collect();
            if alone {
                expected = tokens;
            } else {
                assert_eq!(tokens, expected, "alone and in company");
            }
        }
        // What the plugin was told is what the client gets.
        let prompt: Vec<u32> = (0..20).map(|k| 300 + k * 7 % 4000).collect();
        let body =
            json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
        let answer = server.complete(&body).await;
        let told: Vec<u64> = expected[0].as_array().unwrap()[1..]
            .iter()
            .map(|call| call[0].as_u64().unwrap())
            .collect();
        let body = json!({
            "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "processors": [{"plugin": "force", "params": {"ids": told}}],
        });
        assert!(
            server
                .upload(component("tests/guests/dist/force.wasm"))
                .await
                .0
                .is_success()
        );
        assert_eq!(text(&server.complete(&body).await), text(&answer));
    }
}

/// A busy port and a missing model: one sentence and a failure.
#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let port = Server::shared().url.rsplit(':').next().unwrap().to_owned();
    for (arguments, words) in [
        (&["--port", &port[..]][..], &port[..]),
        (
            &["--port", "0", "--model", "no/such/model.gguf"],
            "no/such/model.gguf",
        ),
        (&["--port", "0", "--model", "Cargo.toml"], "Cargo.toml"),
    ] {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_sluice"))
            .args(arguments)
            .output()
            .await
            .unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(words), "{error}");
        assert!(error.lines().count() <= 2, "{error}");
    }
}

/// Uploads and removals, and a kill at any moment: what was acknowledged is
/// there after the next start, whole, and nothing else is left.
#[tokio::test]
async fn nothing_acknowledged_is_lost_by_a_kill() {
    let rounds: u64 = std::env::var("SLUICE_TEST_KILLS").map_or(3, |n| n.parse().unwrap());
    let data = tempfile::tempdir().unwrap();
    let guests = [
        "force", "counter", "boost", "stop-at", "identity", "recorder",
    ];
    let guests = guests.map(|name| (name, component(&format!("tests/guests/dist/{name}.wasm"))));
    // What must be there, and what may be: the last request was under way.
    let mut certain = BTreeSet::<String>::new();
    let mut doubtful: Option<&str> = None;
    for round in 0..=rounds {
        let mut server = Killable::start(data.path());
        let (_, list) = server.client.get("/v1/plugins").await;
        let mut found: BTreeSet<_> = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|plugin| plugin["builtin"] == false)
            .map(|plugin| plugin["name"].as_str().unwrap().to_owned())
            .collect();
        let files = std::fs::read_dir(data.path().join("components")).unwrap();
        assert_eq!(files.count(), found.len(), "round {round}");
        if let Some(name) = doubtful.take() {
            if found.remove(name) {
                certain.insert(name.to_owned());
            } else {
                certain.remove(name);
            }
            found = found.union(&certain).cloned().collect();
        }
        assert_eq!(found, certain, "round {round}");
        let moment = Duration::from_millis(1 + (round * 7919 % 97) * 3);
        let work = async {
            for step in 0_usize.. {
                let (name, bytes) = &guests[(round as usize * 5 + step) % guests.len()];
                doubtful = Some(name);
                if certain.contains(*name) {
                    if server.client.delete(name).await.0.is_success() {
                        certain.remove(*name);
                    }
                } else if server.client.upload(bytes.clone()).await.0.is_success() {
                    certain.insert((*name).to_owned());
                }
                doubtful = None;
            }
        };
        // The future is dropped where it waits, with `doubtful` set.
        let _ = tokio::time::timeout(moment, work).await;
        server.kill();
    }
}
