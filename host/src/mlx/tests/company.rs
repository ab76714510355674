//! A sequence's logits are the same to the bit, whatever is computed with them.

use super::*;

/// Holds for prompts made of `prompt`, which has 36 tokens at least.
pub(super) fn does_not_matter(model: &mut dyn Model, prompt: &[u32]) {
    prompt_chunks_do_not_matter(model, prompt);
    batch_size_does_not_matter(model, prompt);
    joining_late_does_not_matter(model, prompt);
    shared_positions_do_not_matter(model, prompt);
}

/// The rows of logits of the last pass.
fn lines(model: &mut dyn Model) -> Vec<Vec<f32>> {
    let width = model.vocabulary_size();
    let rows = model.logits().values().chunks_exact(width);
    rows.map(<[f32]>::to_vec).collect()
}

/// Greedy tokens and their logits, the sequence alone in slot 0.
pub(super) fn solo(model: &mut dyn Model, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let (mut tokens, mut logits) = (vec![], vec![]);
    model.forward(&rows(0, 0, prompt)).unwrap();
    for index in 0..n {
        let token = greedy(model.logits().values());
        logits.push(bits(model.logits().values()));
        tokens.push(token);
        model
            .forward(&rows(0, prompt.len() + index, &[token]))
            .unwrap();
    }
    model.release(0);
    (tokens, logits)
}

/// One prompt whole, in chunks, and token by token as decoding does it.
fn prompt_chunks_do_not_matter(model: &mut dyn Model, prompt: &[u32]) {
    let whole = wanting(rows(0, 0, prompt));
    model.forward(&whole).unwrap();
    let expected: Vec<_> = lines(model).iter().map(|row| bits(row)).collect();
    assert_eq!(expected.len(), prompt.len());
    model.release(0);
    for chunk in [1, 2, 3, 7, 16, 36] {
        for (index, tokens) in prompt.chunks(chunk).enumerate() {
            let start = index * chunk;
            model.forward(&rows(0, start, tokens)).unwrap();
            let last = start + tokens.len() - 1;
            assert!(
                bits(model.logits().values()) == expected[last],
                "chunks of {chunk}, position {last}"
            );
        }
        model.release(0);
    }
    let long = prompt.repeat(8);
    model.forward(&rows(0, 0, &long)).unwrap();
    let expected = bits(model.logits().values());
    model.release(0);
    for chunk in [17, 64, 100] {
        for (index, tokens) in long.chunks(chunk).enumerate() {
            model.forward(&rows(0, index * chunk, tokens)).unwrap();
        }
        assert!(
            bits(model.logits().values()) == expected,
            "long prompt, chunks of {chunk}"
        );
        model.release(0);
    }
}

/// Sixteen different prompts, the last token of each decoded in batches of 1
/// to 16.
fn batch_size_does_not_matter(model: &mut dyn Model, prompt: &[u32]) {
    let prompts: Vec<&[u32]> = (0..16).map(|index| &prompt[index..20 + index]).collect();
    let expected: Vec<_> = (0..)
        .zip(&prompts)
        .map(|(slot, prompt)| {
            model.forward(&rows(slot, 0, prompt)).unwrap();
            bits(model.logits().values())
        })
        .collect();
    for n_rows in 1..=16 {
        // Writes the last position once more.
        let batch: Vec<Row> = (0..)
            .zip(&prompts[..n_rows])
            .flat_map(|(slot, prompt)| rows(slot, prompt.len() - 1, &prompt[prompt.len() - 1..]))
            .collect();
        model.forward(&batch).unwrap();
        for (slot, row) in lines(model).iter().enumerate() {
            assert!(bits(row) == expected[slot], "row {slot} of {n_rows}");
        }
    }
    (0..16).for_each(|slot| model.release(slot));
}

/// Five sequences that join one after the other, their prompts in chunks
/// while the others decode.
fn joining_late_does_not_matter(model: &mut dyn Model, prompt: &[u32]) {
    const N: usize = 8;
    let prompts: Vec<&[u32]> = (0..5).map(|index| &prompt[3 * index..]).collect();
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| solo(model, prompt, N))
        .collect();
    let mut contexts: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    let mut computed = [0; 5];
    let mut n_tokens = [0; 5];
    for step in 0.. {
        let mut batch = vec![];
        let mut slots = vec![];
        for slot in 0..5 {
            let end = contexts[slot].len().min(computed[slot] + 6);
            if step < 3 * slot || n_tokens[slot] == N {
                continue;
            }
            let mut more = rows(
                slot as u32,
                computed[slot],
                &contexts[slot][computed[slot]..end],
            );
            let complete = end == contexts[slot].len();
            more.last_mut().unwrap().wants_logits = complete;
            batch.extend(more);
            slots.extend(complete.then_some(slot));
            computed[slot] = end;
        }
        if batch.is_empty() {
            break;
        }
        model.forward(&batch).unwrap();
        let logits = lines(model);
        assert_eq!(logits.len(), slots.len());
        for (row, slot) in logits.iter().zip(slots) {
            let (tokens, expected) = &expected[slot];
            assert!(
                bits(row) == expected[n_tokens[slot]],
                "slot {slot}, token {}",
                n_tokens[slot]
            );
            contexts[slot].push(tokens[n_tokens[slot]]);
            n_tokens[slot] += 1;
        }
    }
    assert_eq!(n_tokens, [N; 5]);
    (0..5).for_each(|slot| model.release(slot));
}

/// A slot that begins with another's positions goes on as if it had computed
/// them, and the other too.
fn shared_positions_do_not_matter(model: &mut dyn Model, prompt: &[u32]) {
    let long = prompt.repeat(4);
    for n_shared in [1, 63, 64, 100] {
        let other: Vec<u32> = [&long[..n_shared], &prompt[5..30]].concat();
        let expected = [&long, &other].map(|prompt| solo(model, prompt, 3));
        model.forward(&rows(1, 0, &long)).unwrap();
        model.share(1, 2, n_shared as u32);
        model
            .forward(&rows(2, n_shared, &other[n_shared..]))
            .unwrap();
        assert!(
            bits(model.logits().values()) == expected[1].1[0],
            "{n_shared}"
        );
        let token = expected[0].0[0];
        model.forward(&rows(1, long.len(), &[token])).unwrap();
        assert!(
            bits(model.logits().values()) == expected[0].1[1],
            "{n_shared}"
        );
        model.release(1);
        let token = expected[1].0[0];
        model.forward(&rows(2, other.len(), &[token])).unwrap();
        assert!(
            bits(model.logits().values()) == expected[1].1[1],
            "{n_shared}"
        );
        model.release(2);
    }
}
