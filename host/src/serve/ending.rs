//! From the first request to the last: a signal lets requests under way end, a
//! second one does not, and an engine that is lost takes the process along.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level;
use tokio::sync::oneshot;

use super::watchdog;
use crate::http::errors::{ApiError, Code};
use crate::http::{Connections, HEAD_TIMEOUT, Service, router};
use crate::plugin::STACK_BYTES;

/// What errors and last bytes get to reach their clients.
pub(super) const FLUSH: Duration = Duration::from_secs(2);

/// What the engine's thread gets to end its step.
const LAST_STEP: Duration = Duration::from_secs(5);

/// How connections and the whole server end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endings {
    /// How long requests under way may go on after the first signal.
    pub drain: Duration,
    /// How long a client may take nothing before its connection is closed.
    pub slow_reader: Duration,
}

impl Default for Endings {
    fn default() -> Self {
        Self {
            drain: Duration::from_secs(30),
            slow_reader: Duration::from_secs(30),
        }
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was told to, and has answered every request, if only with an error.
    Told,
    /// A second signal of this number came before that.
    ToldTwice(i32),
    /// The engine was lost or stuck.
    EngineLost,
}

impl Exit {
    /// What the process says: 0, 128 and the signal's number as shells have it,
    /// or 70, which sysexits.h calls an internal software error.
    pub fn code(self) -> i32 {
        match self {
            Self::Told => 0,
            Self::ToldTwice(number) => 128 + number,
            Self::EngineLost => 70,
        }
    }

    /// Ends the process here and now: nothing is torn down, for MLX may be at
    /// work on its thread, and would hang or crash.
    pub fn leave(self) -> ! {
        low_level::exit(self.code())
    }
}

/// Answers on `listener` until the process is told to end; says on standard
/// output where, once it can be told so.
///
/// # Errors
/// When threads, signals or the listener cannot be had.
pub fn run(
    listener: TcpListener,
    service: Arc<Service>,
    engine: JoinHandle<()>,
    endings: Endings,
) -> std::io::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()?;
    watchdog::start(&service, || Exit::EngineLost.leave())?;
    runtime.block_on(answer(listener, service, endings))?;
    // Drops every task, and with the last of them the engine's last handle.
    runtime.shutdown_timeout(Duration::from_secs(1));
    wait_for(engine);
    Ok(Exit::Told)
}

async fn answer(
    listener: TcpListener,
    service: Arc<Service>,
    endings: Endings,
) -> std::io::Result<()> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let connections = Connections::new(listener, endings.slow_reader, HEAD_TIMEOUT);
    let told = signals()?;
    let (close, closed) = oneshot::channel::<()>();
    let server = connections.serve(router(&service), async { drop(closed.await) });
    let server = tokio::spawn(server);
    println!("listening on http://{address}");

    // An error is a thread that is gone, which it is only after the second.
    let _ = told.await;
    drain(&service, endings.drain).await;
    // Connections without a request are closed now, and no more are accepted.
    drop(close);
    drop(service);
    match tokio::time::timeout(FLUSH, server).await {
        Ok(Err(panicked)) => Err(std::io::Error::other(panicked)),
        // The latter: clients that do not take what they asked for.
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

/// Lets requests under way end, and ends those that take too long.
async fn drain(service: &Service, patience: Duration) {
    let life = &service.lifecycle;
    life.drain(patience);
    let n = life.in_flight();
    tracing::info!("stopping; {n} requests under way have {patience:?}");
    if tokio::time::timeout(patience, life.idle()).await.is_ok() {
        return;
    }
    tracing::warn!("{} requests are ended with an error", life.in_flight());
    let message = format!("the server is stopping, and the request took longer than {patience:?}");
    life.end(ApiError::new(Code::Stopped, message).after(1));
    // Those whose clients take nothing are cut off.
    let _ = tokio::time::timeout(FLUSH, life.idle()).await;
}

/// Completes at the first signal to end; a second one ends the process at once,
/// whatever its other threads are doing.
fn signals() -> std::io::Result<oneshot::Receiver<()>> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let (told, first) = oneshot::channel();
    thread::Builder::new()
        .name("sluice-signals".into())
        .spawn(move || {
            let mut numbers = signals.forever();
            numbers.next();
            // Who waits for it is there as long as the server is.
            let _ = told.send(());
            if let Some(number) = numbers.next() {
                Exit::ToldTwice(number).leave();
            }
        })?;
    Ok(first)
}

/// Lets the engine end its step.
fn wait_for(engine: JoinHandle<()>) {
    let deadline = Instant::now() + LAST_STEP;
    while !engine.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    if engine.is_finished() && engine.join().is_err() {
        tracing::error!("the engine's thread panicked");
    }
}
