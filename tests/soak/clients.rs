//! What a client does: anything, at random.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::connection::{Answer, Connection, End, Leave, Reading, request};
use crate::malformed;
use crate::outcome::{Outcome, events};
use crate::random::Random;
use crate::requests::Ask;
use crate::uploads;
use crate::world::World;

/// Longer than any answer may take: who waits so long is stuck.
const PATIENCE: Duration = Duration::from_mins(4);

pub struct Client<'a> {
    pub world: &'a World,
    pub random: Random,
}

impl Client<'_> {
    /// One thing after the other until the end.
    pub async fn work(mut self, end: Instant) {
        while Instant::now() < end {
            let action = self.random.below(100);
            let doing = Box::pin(self.act(action));
            if tokio::time::timeout(PATIENCE, doing).await.is_err() {
                self.world.tally.fail("stuck", format!("action {action}"));
            }
        }
    }

    async fn act(&mut self, action: usize) {
        match action {
            0..27 => self.ask("plain").await,
            27..48 => self.ask("stream").await,
            48..64 => self.hang_up().await,
            64..69 => self.read_slowly().await,
            69..74 => self.send_part().await,
            74..84 => malformed::send(self).await,
            84..94 => uploads::act(self).await,
            94..97 => self.look().await,
            97 if self.world.is_long => self.stall().await,
            _ => self.pipeline().await,
        }
    }

    pub async fn connect(&self, action: &'static str) -> Option<Connection> {
        match Connection::open(&self.world.address).await {
            Ok(connection) => Some(connection),
            Err(error) => {
                self.world.tally.fail(action, error);
                None
            }
        }
    }

    /// Sends a whole request and takes its whole answer, which must be one that
    /// the document has.
    pub async fn exchange(
        &self,
        action: &'static str,
        (method, path): (&str, &str),
        body: &[u8],
    ) -> Option<Answer> {
        let mut connection = self.connect(action).await?;
        let answer = match connection.send(&request(method, path, body)).await {
            Ok(()) => connection.answer(Reading::WHOLE).await,
            Err(error) => Err(error.to_string()),
        };
        let answer = self.whole(action, path, answer)?;
        self.documented(action, (method, path), &answer)
            .then_some(answer)
    }

    fn whole(
        &self,
        action: &'static str,
        path: &str,
        answer: Result<Option<Answer>, String>,
    ) -> Option<Answer> {
        let tally = &self.world.tally;
        match answer {
            Ok(Some(answer)) if answer.end == End::Whole => return Some(answer),
            Ok(Some(answer)) => {
                let end = answer.body.len().saturating_sub(500);
                let last = String::from_utf8_lossy(&answer.body[end..]);
                tally.fail(action, format!("{path}: cut after {last}"));
            }
            Ok(None) => tally.fail(action, format!("{path}: no answer")),
            Err(error) => tally.fail(action, format!("{path}: {error}")),
        }
        None
    }

    /// Counts what is not documented, and any 500, as failures.
    pub fn documented(
        &self,
        action: &'static str,
        (method, path): (&str, &str),
        answer: &Answer,
    ) -> bool {
        let checked = self.world.document.check(method, path, answer);
        if let Err(error) = checked {
            self.world.tally.fail(action, error);
            return false;
        }
        if answer.status == 500 {
            let body = String::from_utf8_lossy(&answer.body);
            self.world
                .tally
                .fail(action, format!("{method} {path}: {body}"));
            return false;
        }
        true
    }

    /// Asks, reads all of it, and holds it against the request alone.
    async fn ask(&mut self, action: &'static str) {
        let world = self.world;
        let ask = self.random.pick(&world.pool);
        let body = self.body(ask, action == "stream");
        let answer = self.exchange(action, ("POST", ask.path), &body).await;
        if let Some(answer) = answer {
            self.judge(action, ask, &answer);
            self.back_off(&answer).await;
        }
    }

    fn body(&mut self, ask: &Ask, streamed: bool) -> Vec<u8> {
        let body = if streamed {
            ask.streamed(self.random.chance(50))
        } else {
            ask.body.clone()
        };
        body.to_string().into_bytes()
    }

    /// Holds a whole answer against the request alone.
    fn judge(&self, action: &'static str, ask: &Ask, answer: &Answer) {
        let tally = &self.world.tally;
        let outcome = match outcome(answer) {
            Ok(outcome) => outcome,
            Err(error) => return tally.fail(action, error),
        };
        let code = outcome.error.as_ref().map(|error| error["code"].as_str());
        let code = code.map(|code| code.unwrap_or_default().to_owned());
        match code.as_deref() {
            Some("overloaded") => {}
            Some("plugin_not_found") if ask.may_lack_a_plugin() => {}
            Some("plugin_disabled") if ask.may_meet_a_disabled_plugin() => {}
            _ => {
                if let Err(difference) = outcome.check(&ask.alone) {
                    return tally.fail(action, format!("{}\n{difference}", ask.body));
                }
            }
        }
        tally.count(action, code.unwrap_or_else(|| "equal".into()));
    }

    /// As an honest client does when there is too much going on.
    async fn back_off(&mut self, answer: &Answer) {
        if let Some(seconds) = answer.headers.get("retry-after") {
            let seconds: u64 = seconds.parse().unwrap_or(1);
            let most = (seconds * 1000).min(2000) as usize;
            let wait = Duration::from_millis(self.random.below(most + 1) as u64);
            tokio::time::sleep(wait).await;
        }
    }

    /// A way to leave.
    fn leave(&mut self) -> Leave {
        match self.random.below(10) {
            0..4 => Leave::Close,
            4..7 => Leave::Reset,
            7..9 => Leave::HalfClose,
            _ => Leave::Stall(Duration::from_millis(self.random.below(8000) as u64)),
        }
    }

    /// Leaves before the answer, or somewhere in it.
    async fn hang_up(&mut self) {
        let action = "hang up";
        let world = self.world;
        let ask = self.random.pick(&world.pool);
        let streamed = self.random.chance(70);
        let body = self.body(ask, streamed);
        let how = self.leave();
        let Some(mut connection) = self.connect(action).await else {
            return;
        };
        if let Err(error) = connection.send(&request("POST", ask.path, &body)).await {
            return world.tally.fail(action, error);
        }
        if streamed && self.random.chance(80) {
            let most = self.random.below(12_000);
            let reading = Reading { most, pause: None };
            match connection.answer(reading).await {
                Ok(Some(answer)) if answer.end == End::Whole => self.judge(action, ask, &answer),
                Ok(Some(answer)) => self.judge_beginning(action, ask, &answer),
                Ok(None) => world.tally.fail(action, "no answer"),
                Err(error) => world.tally.fail(action, error),
            }
        } else {
            let wait = Duration::from_millis(self.random.below(1500) as u64);
            tokio::time::sleep(wait).await;
        }
        connection.leave(how).await;
        let how = format!("{how:?}");
        world
            .tally
            .count(action, how.split('(').next().unwrap_or_default());
    }

    /// Holds what was read of a stream against the request alone.
    fn judge_beginning(&self, action: &'static str, ask: &Ask, answer: &Answer) {
        let beginning = events(&answer.body)
            .and_then(|(events, _)| Outcome::of_events(&events))
            .and_then(|beginning| beginning.check_beginning(&ask.alone));
        if let Err(error) = beginning {
            self.world
                .tally
                .fail(action, format!("{}\n{error}", ask.body));
        }
    }

    /// Reads a stream so slowly that the server may have to wait, or give up.
    async fn read_slowly(&mut self) {
        let action = "slow reader";
        let world = self.world;
        let ask = self.random.pick(&world.pool);
        let body = self.body(ask, true);
        let connection = Connection::open_narrow(&world.address).await;
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => return world.tally.fail(action, error),
        };
        if let Err(error) = connection.send(&request("POST", ask.path, &body)).await {
            return world.tally.fail(action, error);
        }
        let pause = Duration::from_millis(5 + self.random.below(60) as u64);
        let reading = Reading {
            most: usize::MAX,
            pause: Some(pause),
        };
        let answer = connection.answer(reading).await;
        if let Some(answer) = self.whole(action, ask.path, answer)
            && self.documented(action, ("POST", ask.path), &answer)
        {
            self.judge(action, ask, &answer);
        }
    }

    /// Sends a part of a request, and leaves.
    async fn send_part(&mut self) {
        let action = "part";
        let world = self.world;
        let ask = self.random.pick(&world.pool);
        let bytes = request("POST", ask.path, &self.body(ask, false));
        let part = self.random.below(bytes.len());
        let how = self.leave();
        if let Some(mut connection) = self.connect(action).await {
            if let Err(error) = connection.send(&bytes[..part]).await {
                return world.tally.fail(action, error);
            }
            let wait = Duration::from_millis(self.random.below(300) as u64);
            tokio::time::sleep(wait).await;
            connection.leave(how).await;
            let how = format!("{how:?}");
            world
                .tally
                .count(action, how.split('(').next().unwrap_or_default());
        }
    }

    /// Begins a request and says no more. The connection ends by itself, with
    /// an answer if there was a head.
    async fn stall(&mut self) {
        let action = "stall";
        let world = self.world;
        let ask = self.random.pick(&world.pool);
        let body = self.body(ask, false);
        let bytes = request("POST", ask.path, &body);
        let n_head = bytes.len() - body.len();
        let in_head = self.random.chance(50);
        let part = if in_head {
            self.random.below(n_head)
        } else {
            n_head + self.random.below(body.len())
        };
        let Some(mut connection) = self.connect(action).await else {
            return;
        };
        if let Err(error) = connection.send(&bytes[..part]).await {
            return world.tally.fail(action, error);
        }
        let answer = connection.answer(Reading::WHOLE).await;
        if in_head {
            return match answer {
                Ok(None) => world.tally.count(action, "closed"),
                Ok(Some(answer)) => world.tally.fail(action, answer.status),
                Err(error) => world.tally.fail(action, error),
            };
        }
        if let Some(answer) = self.whole(action, ask.path, answer)
            && self.documented(action, ("POST", ask.path), &answer)
        {
            match answer.status {
                408 => world.tally.count(action, "408"),
                status => world.tally.fail(action, status),
            }
        }
    }

    /// Looks at what there is.
    async fn look(&mut self) {
        let paths = [
            "/v1/models",
            "/v1/plugins",
            "/v1/plugins/rules",
            "/v1/dialects",
            "/health",
            "/ready",
            "/metrics",
            "/openapi.json",
        ];
        let path = *self.random.pick(&paths);
        if let Some(answer) = self.exchange("look", ("GET", path), b"").await {
            match answer.status {
                200 => self.world.tally.count("look", "200"),
                status => self.world.tally.fail("look", format!("{path}: {status}")),
            }
        }
    }

    /// Several requests at once over one connection, which are answered in
    /// order.
    async fn pipeline(&mut self) {
        let action = "pipeline";
        let world = self.world;
        let asks: Vec<_> = (0..2 + self.random.below(3))
            .map(|_| self.random.pick(&world.pool))
            .collect();
        let mut bytes = Vec::new();
        for ask in &asks {
            let streamed = self.random.chance(50);
            bytes.extend(request("POST", ask.path, &self.body(ask, streamed)));
        }
        let Some(mut connection) = self.connect(action).await else {
            return;
        };
        if let Err(error) = connection.send(&bytes).await {
            return world.tally.fail(action, error);
        }
        for ask in asks {
            let answer = connection.answer(Reading::WHOLE).await;
            let Some(answer) = self.whole(action, ask.path, answer) else {
                return;
            };
            if self.documented(action, ("POST", ask.path), &answer) {
                self.judge(action, ask, &answer);
            }
        }
    }
}

/// What an answer of a generation route came to.
pub fn outcome(answer: &Answer) -> Result<Outcome, String> {
    let kind = answer.headers.get("content-type").map(String::as_str);
    if kind != Some("text/event-stream") {
        return Outcome::of_body(&answer.body);
    }
    let (events, done) = events(&answer.body)?;
    let outcome = Outcome::of_events(&events)?;
    if done == outcome.error.is_some() {
        return Err(format!("a stream ends with {:?}", events.last()));
    }
    Ok(outcome)
}

/// The answer to a request that nothing else is asked beside.
pub async fn ask_alone(address: &str, path: &str, body: &Value) -> Outcome {
    let mut connection = Connection::open(address).await.unwrap();
    let bytes = request("POST", path, body.to_string().as_bytes());
    connection.send(&bytes).await.unwrap();
    let answer = connection.answer(Reading::WHOLE).await.unwrap().unwrap();
    assert_eq!(answer.end, End::Whole, "{body}");
    outcome(&answer).unwrap()
}
