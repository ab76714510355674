//! HTTP over a socket that can be cut, left, or read slowly at any byte.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// A connection with what was read of it and is not used yet.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// How an answer is read.
#[derive(Clone, Copy)]
pub struct Reading {
    /// Bytes of the body after which it is left.
    pub most: usize,
    /// Waits between reads of few bytes.
    pub pause: Option<Duration>,
}

impl Reading {
    pub const WHOLE: Self = Self {
        most: usize::MAX,
        pause: None,
    };
}

/// An answer, or what was read of it.
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// As HTTP says.
    Whole,
    /// The reader has had enough.
    Left,
    /// The other side closed the connection.
    Closed,
}

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
pub enum Leave {
    /// Closes the socket.
    Close,
    /// Resets the connection.
    Reset,
    /// Closes its own direction and waits for the other side to end.
    HalfClose,
    /// Stays for a while, reads nothing and says nothing.
    Stall(Duration),
}

/// A whole request.
pub fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend(body);
    bytes
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Self> {
        Self::from_socket(TcpSocket::new_v4()?, address).await
    }

    /// One that takes few bytes at once from the other side.
    pub async fn open_narrow(address: &str) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        Self::from_socket(socket, address).await
    }

    async fn from_socket(socket: TcpSocket, address: &str) -> io::Result<Self> {
        let address = address.parse().map_err(io::Error::other)?;
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            unread: Vec::new(),
        })
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads on; false at the end.
    async fn more(&mut self, pause: Option<Duration>) -> bool {
        let n = match pause {
            None => 16 << 10,
            Some(pause) => {
                tokio::time::sleep(pause).await;
                256
            }
        };
        let mut buffer = vec![0; n];
        match self.stream.read(&mut buffer).await {
            Ok(0) | Err(_) => false,
            Ok(n) => {
                self.unread.extend(&buffer[..n]);
                true
            }
        }
    }

    /// The next answer; none if the other side ends without one.
    ///
    /// # Errors
    /// What is not HTTP in it.
    pub async fn answer(&mut self, reading: Reading) -> Result<Option<Answer>, String> {
        let end = loop {
            match find(&self.unread, b"\r\n\r\n") {
                Some(end) => break end,
                None if self.more(reading.pause).await => {}
                None if self.unread.is_empty() => return Ok(None),
                None => return Err(format!("half a head: {:?}", lossy(&self.unread))),
            }
        };
        let head = lossy(&self.unread[..end]);
        self.unread.drain(..end + 4);
        let (status, headers) = parse_head(&head)?;
        let (body, end) = if headers
            .get("transfer-encoding")
            .is_some_and(|v| v == "chunked")
        {
            self.chunks(reading).await?
        } else {
            let length = headers.get("content-length");
            let length = length.ok_or_else(|| format!("no length: {head}"))?;
            let length = length.parse::<usize>().map_err(|e| e.to_string())?;
            self.plain(length, reading).await
        };
        Ok(Some(Answer {
            status,
            headers,
            body,
            end,
        }))
    }

    async fn plain(&mut self, length: usize, reading: Reading) -> (Vec<u8>, End) {
        while self.unread.len() < length {
            if self.unread.len() >= reading.most {
                return (std::mem::take(&mut self.unread), End::Left);
            }
            if !self.more(reading.pause).await {
                return (std::mem::take(&mut self.unread), End::Closed);
            }
        }
        (self.unread.drain(..length).collect(), End::Whole)
    }

    async fn chunks(&mut self, reading: Reading) -> Result<(Vec<u8>, End), String> {
        let mut body = Vec::new();
        loop {
            if let Some((chunk, used)) = take_chunk(&self.unread)? {
                let is_last = chunk.is_empty();
                body.extend(chunk);
                self.unread.drain(..used);
                if is_last {
                    return Ok((body, End::Whole));
                }
            } else if body.len() >= reading.most {
                return Ok((body, End::Left));
            } else if !self.more(reading.pause).await {
                return Ok((body, End::Closed));
            }
        }
    }

    pub async fn leave(mut self, how: Leave) {
        match how {
            Leave::Close => {}
            Leave::Reset => {
                // Fails only where the connection is gone already.
                let _ = self.stream.set_zero_linger();
            }
            Leave::HalfClose => {
                let _ = self.stream.shutdown().await;
                while self.more(None).await {
                    self.unread.clear();
                }
            }
            Leave::Stall(time) => tokio::time::sleep(time).await,
        }
    }
}

/// The first chunk and how many bytes it takes, once it is whole.
fn take_chunk(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, String> {
    let Some(line) = find(bytes, b"\r\n") else {
        return Ok(None);
    };
    let size = lossy(&bytes[..line]);
    let size = usize::from_str_radix(&size, 16).map_err(|e| format!("{size:?}: {e}"))?;
    let (start, end) = (line + 2, line + 2 + size);
    match bytes.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((&bytes[start..end], end + 2))),
        Some(other) => Err(format!("a chunk is followed by {other:?}")),
    }
}

fn parse_head(head: &str) -> Result<(u16, BTreeMap<String, String>), String> {
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let status = status
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3)?.parse().ok())
        .ok_or_else(|| format!("no status: {head:?}"))?;
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':').ok_or(format!("no header: {line:?}"))?;
            Ok((name.to_lowercase(), value.trim().to_owned()))
        })
        .collect::<Result<_, String>>()?;
    Ok((status, headers))
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
