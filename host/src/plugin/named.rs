//! What all plugins of a name share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One of each for a name, as long as anybody holds it. Whoever removes a plugin
/// and uploads another version finds what others still hold.
#[derive(Debug)]
pub(super) struct Named<T>(Mutex<HashMap<String, Weak<T>>>);

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Named<T> {
    /// That of the name, or a new one.
    pub(super) fn of(&self, name: &str, new: impl FnOnce() -> T) -> Arc<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, held| held.strong_count() > 0);
        if let Some(held) = all.get(name).and_then(Weak::upgrade) {
            return held;
        }
        let held = Arc::new(new());
        all.insert(name.to_owned(), Arc::downgrade(&held));
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_what_it_has_as_long_as_anybody_holds_it() {
        let named = Named::default();
        let held = named.of("a", || 1);
        assert_eq!((*named.of("a", || 2), *named.of("b", || 3)), (1, 3));
        drop(held);
        assert_eq!((*named.of("a", || 4), *named.of("b", || 5)), (4, 5));
    }
}
