//! OpenTelemetry's own variables, as far as they concern us.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};

use super::TracesError;

/// What a collector gets for one batch, unless `OTEL_EXPORTER_OTLP_TIMEOUT` says
/// otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many spans wait at most, unless `OTEL_BSP_MAX_QUEUE_SIZE` says otherwise;
/// the SDK has the same.
const QUEUE: u64 = 2048;

/// Most that it may say: the SDK makes room for all of them when it starts.
const MOST_QUEUED: u64 = 65_536;

/// A day, in milliseconds.
const MOST_MILLISECONDS: u64 = 86_400_000;

const MILLISECONDS: &str = "it is milliseconds, from 1 to 86400000";
const OTHER_TIMEOUT: &str = "it is not read; give OTEL_EXPORTER_OTLP_TIMEOUT";
const CERTIFICATES: &str = "certificates of one's own are not read";

/// What is not done here, whatever the value.
const NOT_READ: [(&str, &str); 9] = [
    (
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "it is not read; give the base with --otlp-endpoint",
    ),
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", OTHER_TIMEOUT),
    ("OTEL_BSP_EXPORT_TIMEOUT", OTHER_TIMEOUT),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", CERTIFICATES),
    ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", CERTIFICATES),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", CERTIFICATES),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", CERTIFICATES),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", CERTIFICATES),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", CERTIFICATES),
];

/// What the variables say that the SDK does not read by itself.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::telemetry) struct Environment {
    pub(super) timeout: Duration,
}

impl Environment {
    /// Reads the variables; `None` if they turn tracing off. The SDK falls back
    /// in silence on a value that it does not know: here it is an error.
    ///
    /// # Errors
    /// The first variable that asks for what is not done here.
    pub(in crate::telemetry) fn read(
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TracesError> {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        if get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        match get("OTEL_TRACES_EXPORTER") {
            Some(value) if value == "none" => return Ok(None),
            Some(value) if value != "otlp" => {
                let message = "only otlp and none are known";
                return Err(refused("OTEL_TRACES_EXPORTER", value, message));
            }
            _ => {}
        }
        for (name, message) in NOT_READ {
            if get(name).is_some() {
                return Err(TracesError::NotRead { name, message });
            }
        }
        for name in [
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        ] {
            if let Some(value) = get(name).filter(|value| value != "http/protobuf") {
                return Err(refused(name, value, "only http/protobuf is spoken"));
            }
        }
        for name in [
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        ] {
            check_headers(name, &get(name).unwrap_or_default())?;
        }
        check_sampler(get)?;
        check_propagators(get)?;
        check_batches(get)?;
        let timeout = number(
            get,
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            MOST_MILLISECONDS,
            MILLISECONDS,
        )?;
        let timeout = timeout.map_or(TIMEOUT, Duration::from_millis);
        Ok(Some(Self { timeout }))
    }
}

fn refused(name: &'static str, value: String, message: &'static str) -> TracesError {
    TracesError::Variable {
        name,
        value,
        message,
    }
}

/// The number from one to `most` that a variable is, if it is set.
fn number(
    get: impl Fn(&str) -> Option<String>,
    name: &'static str,
    most: u64,
    message: &'static str,
) -> Result<Option<u64>, TracesError> {
    let Some(value) = get(name) else {
        return Ok(None);
    };
    match value.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
        _ => Err(refused(name, value, message)),
    }
}

/// The SDK leaves out what is no pair. The error does not show it, as it may be a
/// secret.
fn check_headers(name: &'static str, value: &str) -> Result<(), TracesError> {
    let pairs = (1..).zip(value.split(','));
    for (nth, pair) in pairs.filter(|(_, pair)| !pair.trim().is_empty()) {
        if !is_header(pair) {
            return Err(TracesError::Header { name, nth });
        }
    }
    Ok(())
}

fn is_header(pair: &str) -> bool {
    let Some((name, value)) = pair.split_once('=') else {
        return false;
    };
    let value = decoded(value.trim()).and_then(|bytes| String::from_utf8(bytes).ok());
    let value = value.filter(|value| !value.is_empty());
    name.trim().parse::<HeaderName>().is_ok()
        && value.is_some_and(|value| HeaderValue::from_str(&value).is_ok())
}

/// The text with the bytes that each `%` and its two digits stand for; none if
/// these are not two digits.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    Some(bytes)
}

fn check_sampler(get: impl Fn(&str) -> Option<String>) -> Result<(), TracesError> {
    let Some(value) = get("OTEL_TRACES_SAMPLER") else {
        return Ok(());
    };
    let known = ["always_on", "always_off", "traceidratio"];
    let kind = value.strip_prefix("parentbased_").unwrap_or(&value);
    if !known.contains(&kind) {
        let message = "only always_on, always_off and traceidratio are known, and these with \
                       parentbased_ before them";
        return Err(refused("OTEL_TRACES_SAMPLER", value, message));
    }
    let ratio = get("OTEL_TRACES_SAMPLER_ARG").unwrap_or_default();
    let parsed = ratio.parse::<f64>();
    if kind == "traceidratio" && !parsed.is_ok_and(|r| (0.0..=1.0).contains(&r)) {
        let message = "the ratio of traceidratio is a number from 0 to 1";
        return Err(refused("OTEL_TRACES_SAMPLER_ARG", ratio, message));
    }
    Ok(())
}

/// A caller's `traceparent` is read, and nobody is called to whom baggage could be
/// passed on.
fn check_propagators(get: impl Fn(&str) -> Option<String>) -> Result<(), TracesError> {
    let name = "OTEL_PROPAGATORS";
    let Some(value) = get(name) else {
        return Ok(());
    };
    let mut kinds = value.split(',').map(str::trim);
    let known = kinds
        .clone()
        .all(|kind| ["tracecontext", "baggage"].contains(&kind));
    if known && kinds.any(|kind| kind == "tracecontext") {
        return Ok(());
    }
    let message = "only tracecontext is known, and baggage beside it";
    Err(refused(name, value, message))
}

/// What the SDK reads by itself.
fn check_batches(get: impl Fn(&str) -> Option<String> + Copy) -> Result<(), TracesError> {
    let name = "OTEL_BSP_SCHEDULE_DELAY";
    number(get, name, MOST_MILLISECONDS, MILLISECONDS)?;
    let name = "OTEL_BSP_MAX_QUEUE_SIZE";
    let message = "it is a number of spans from 1 to 65536";
    let queue = number(get, name, MOST_QUEUED, message)?.unwrap_or(QUEUE);
    let name = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE";
    let message = "it is a number of spans from 1 to OTEL_BSP_MAX_QUEUE_SIZE, which is 2048 \
                   unless it is set";
    number(get, name, queue, message)?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, TracesError> {
        Environment::read(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_obeyed() {
        let default = Some(Environment { timeout: TIMEOUT });
        assert_eq!(read(&[]).unwrap(), default);
        assert_eq!(read(&[("OTEL_TRACES_EXPORTER", "none")]).unwrap(), None);
        assert_eq!(read(&[("OTEL_SDK_DISABLED", "true")]).unwrap(), None);
        let timeout = Duration::from_millis(250);
        assert_eq!(
            read(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "250")]).unwrap(),
            Some(Environment { timeout })
        );
        for variables in [
            &[("OTEL_TRACES_EXPORTER", "")][..],
            &[
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.1"),
            ],
            &[("OTEL_PROPAGATORS", "tracecontext")],
            &[("OTEL_PROPAGATORS", "baggage, tracecontext")],
            &[("OTEL_EXPORTER_OTLP_HEADERS", "a=b")],
            &[(
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20YTpi=, b = c,",
            )],
            &[("OTEL_BSP_SCHEDULE_DELAY", "50")],
            &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2048")],
            &[
                ("OTEL_BSP_MAX_QUEUE_SIZE", "65536"),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "65536"),
            ],
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "100")],
        ] {
            assert_eq!(read(variables).unwrap(), default, "{variables:?}");
        }
    }

    #[test]
    fn what_is_not_done_is_refused() {
        for variables in [
            &[("OTEL_TRACES_EXPORTER", "zipkin")][..],
            &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            &[("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")],
            &[("OTEL_TRACES_SAMPLER", "xray")],
            &[("OTEL_TRACES_SAMPLER", "traceidratio")],
            &[
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "2"),
            ],
            &[("OTEL_PROPAGATORS", "b3")],
            &[("OTEL_PROPAGATORS", "tracecontext,b3")],
            &[("OTEL_PROPAGATORS", "baggage")],
            &[("OTEL_PROPAGATORS", "none")],
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "0")],
            &[("OTEL_EXPORTER_OTLP_TIMEOUT", "86400001")],
            &[("OTEL_BSP_SCHEDULE_DELAY", "5s")],
            &[("OTEL_BSP_SCHEDULE_DELAY", "0")],
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "many")],
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "0")],
            &[("OTEL_BSP_MAX_QUEUE_SIZE", "65537")],
            &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1")],
            &[("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2049")],
            &[
                ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "101"),
            ],
        ] {
            let error = read(variables).unwrap_err().to_string();
            let (name, value) = variables[variables.len() - 1];
            assert!(
                error.contains(name) && error.contains(value),
                "{variables:?}: {error}"
            );
        }
    }

    #[test]
    fn what_is_not_read_is_named_and_not_shown() {
        for name in [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
            "OTEL_BSP_EXPORT_TIMEOUT",
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
        ] {
            let error = read(&[(name, "http://user:hush@a")]).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(name) && !error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn a_pair_that_is_no_header_is_named_and_not_shown() {
        for name in [
            "OTEL_EXPORTER_OTLP_HEADERS",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        ] {
            for pair in [
                "authorization: hush",
                "=hush",
                "a hush=b",
                "hush=",
                "a=hush%2",
                "a=hush%zz",
                "a=hush%0a",
            ] {
                let value = format!("a=b,{pair}");
                let error = read(&[(name, &value)]).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains('2'), "{error}");
                assert!(!error.contains("hush"), "{error}");
            }
        }
    }
}
