//! Stop strings: many strings looked for at once, in text that arrives in
//! pieces (Aho and Corasick, 1975).

use std::collections::VecDeque;

/// The most stop strings a request may have.
pub const MAX_STOP_STRINGS: usize = 64;
/// The longest stop string, in bytes of UTF-8.
pub const MAX_STOP_BYTES: usize = 1024;

/// Why stop strings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    #[error("stop string {index} is empty; it would end every answer at once")]
    Empty { index: usize },
    #[error("stop string {index} has {n_bytes} bytes; the limit is {MAX_STOP_BYTES}")]
    TooLong { index: usize, n_bytes: usize },
    #[error("{n_strings} stop strings; the limit is {MAX_STOP_STRINGS}")]
    TooMany { n_strings: usize },
}

/// The stop strings of a request, ready to be looked for.
#[derive(Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    /// The trie of all strings; the first is the root.
    nodes: Vec<Node>,
}

/// Where in the trie a text stands: the longest end of it that begins a stop
/// string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(u32);

#[derive(Debug, Default)]
struct Node {
    children: Vec<(u8, u32)>,
    /// The node of the longest proper end of this node's text.
    fallback: u32,
    /// Bytes from the root.
    depth: u32,
    /// The longest stop string that ends here, by index.
    found: Option<u32>,
    /// Bytes at the end of the text that may still become a stop string.
    held: u32,
}

impl StopStrings {
    /// No strings at all is fine: nothing is ever found.
    ///
    /// # Errors
    /// An empty string, one above [`MAX_STOP_BYTES`], or more strings than
    /// [`MAX_STOP_STRINGS`].
    pub fn new(strings: Vec<String>) -> Result<Self, StopError> {
        let n_strings = strings.len();
        if n_strings > MAX_STOP_STRINGS {
            return Err(StopError::TooMany { n_strings });
        }
        for (index, string) in strings.iter().enumerate() {
            match string.len() {
                0 => return Err(StopError::Empty { index }),
                n_bytes if n_bytes > MAX_STOP_BYTES => {
                    return Err(StopError::TooLong { index, n_bytes });
                }
                _ => {}
            }
        }
        let mut stop = Self {
            strings,
            nodes: vec![Node::default()],
        };
        stop.grow();
        stop.link();
        Ok(stop)
    }

    /// The stop string of this index.
    pub fn get(&self, index: usize) -> Option<&str> {
        self.strings.get(index).map(String::as_str)
    }

    /// Moves on by one byte of text.
    pub(super) fn step(&self, place: Place, byte: u8) -> Place {
        let mut at = place.0;
        loop {
            if let Some(next) = self.child(at, byte) {
                return Place(next);
            }
            if at == 0 {
                return Place(0);
            }
            at = self.node(at).fallback;
        }
    }

    /// The index and length of the longest stop string that ends here.
    pub(super) fn found(&self, place: Place) -> Option<(usize, usize)> {
        let index = self.node(place.0).found? as usize;
        Some((index, self.strings[index].len()))
    }

    /// How many of the last bytes may still become a stop string.
    pub(super) fn held_bytes(&self, place: Place) -> usize {
        self.node(place.0).held as usize
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        let mut children = self.node(at).children.iter();
        children.find(|(own, _)| *own == byte).map(|&(_, to)| to)
    }

    fn grow(&mut self) {
        for index in 0..self.strings.len() {
            let mut at = 0;
            for position in 0..self.strings[index].len() {
                let byte = self.strings[index].as_bytes()[position];
                at = match self.child(at, byte) {
                    Some(next) => next,
                    None => self.add_child(at, byte),
                };
            }
            self.nodes[at as usize].found.get_or_insert(index as u32);
        }
    }

    fn add_child(&mut self, parent: u32, byte: u8) -> u32 {
        let at = self.nodes.len() as u32;
        let depth = self.node(parent).depth + 1;
        self.nodes.push(Node {
            depth,
            ..Node::default()
        });
        self.nodes[parent as usize].children.push((byte, at));
        at
    }

    /// Fills in what follows from shorter texts, shortest first.
    fn link(&mut self) {
        let mut queue = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for position in 0..self.node(at).children.len() {
                let (byte, child) = self.node(at).children[position];
                let fallback = if at == 0 {
                    Place(0)
                } else {
                    self.step(Place(self.node(at).fallback), byte)
                };
                let (found, held) = {
                    let shorter = self.node(fallback.0);
                    (shorter.found, shorter.held)
                };
                let node = &mut self.nodes[child as usize];
                node.fallback = fallback.0;
                node.found = node.found.or(found);
                node.held = if node.children.is_empty() {
                    held
                } else {
                    node.depth
                };
                queue.push_back(child);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stop(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(ToString::to_string).collect()).unwrap()
    }

    fn place(stop: &StopStrings, text: &str) -> Place {
        text.bytes()
            .fold(Place::default(), |place, byte| stop.step(place, byte))
    }

    #[test]
    fn refuses_what_cannot_be_meant() {
        let new = |strings: Vec<String>| StopStrings::new(strings).unwrap_err();
        assert_eq!(new(vec![String::new()]), StopError::Empty { index: 0 });
        assert_eq!(
            new(vec!["zz".into(), String::new()]),
            StopError::Empty { index: 1 }
        );
        assert_eq!(
            new(vec!["x".repeat(1_000_000)]).to_string(),
            "stop string 0 has 1000000 bytes; the limit is 1024"
        );
        assert_eq!(
            new(vec!["x".into(); 10_000]),
            StopError::TooMany { n_strings: 10_000 }
        );
    }

    #[test]
    fn sixteen_strings_are_fine_and_none_are_too() {
        let strings: Vec<String> = (0..16).map(|number| format!("stop{number}.")).collect();
        let stop = StopStrings::new(strings).unwrap();
        for number in 0..16 {
            let text = format!("text stop{number}.");
            let (index, _) = stop.found(place(&stop, &text)).unwrap();
            assert_eq!(index, number);
        }
        let none = StopStrings::new(Vec::new()).unwrap();
        assert_eq!(none.held_bytes(place(&none, "abc")), 0);
    }

    #[test]
    fn of_strings_that_end_together_the_longest_is_found() {
        let stop = stop(&["b", "cab", "ab"]);
        assert_eq!(stop.found(place(&stop, "xcab")), Some((1, 3)));
        assert_eq!(stop.found(place(&stop, "xab")), Some((2, 2)));
        assert_eq!(stop.found(place(&stop, "xb")), Some((0, 1)));
    }

    #[test]
    fn finds_a_string_inside_the_beginning_of_another() {
        let stop = stop(&["abcd", "bc"]);
        assert_eq!(stop.found(place(&stop, "abc")), Some((1, 2)));
    }

    #[test]
    fn holds_back_exactly_what_may_become_a_stop_string() {
        let stop = stop(&["abab", "bx"]);
        for (text, held) in [
            ("", 0),
            ("a", 1),
            ("ab", 2),
            ("aba", 3),
            ("abaa", 1),
            ("c", 0),
        ] {
            assert_eq!(stop.held_bytes(place(&stop, text)), held, "{text}");
        }
        // After a whole match only a longer string could still follow.
        assert_eq!(stop.held_bytes(place(&stop, "bx")), 0);
        assert_eq!(stop.held_bytes(place(&stop, "abab")), 2);
    }

    #[test]
    fn a_repeated_string_is_reported_by_its_first_index() {
        let stop = stop(&["zz", "end", "end"]);
        assert_eq!(stop.found(place(&stop, "the end")), Some((1, 3)));
    }
}
