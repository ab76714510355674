//! Answers against `/openapi.json`.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::connection::Answer;
use crate::outcome::events;

/// The server's description of its interface.
pub struct Document {
    document: Value,
    /// By pointer; making one takes long.
    validators: RefCell<HashMap<String, Rc<Validator>>>,
}

impl Document {
    pub fn new(document: Value) -> Self {
        Self {
            document,
            validators: RefCell::default(),
        }
    }

    /// Whether the document has this answer.
    pub fn check(&self, method: &str, path: &str, answer: &Answer) -> Result<(), String> {
        let status = answer.status;
        let shown = || {
            let body = String::from_utf8_lossy(&answer.body);
            format!(
                "{method} {path} {status} {}",
                body.get(..2000).unwrap_or(&body)
            )
        };
        let kind = answer.headers.get("content-type");
        let kind = kind.ok_or_else(|| format!("no content-type: {}", shown()))?;
        let content = match self.template(path) {
            None => {
                return self
                    .check_nowhere(answer)
                    .map_err(|e| format!("{e}: {}", shown()));
            }
            Some(template) => {
                let operation = format!("/paths/{}/{}", escaped(template), method.to_lowercase());
                if self.document.pointer(&operation).is_none() {
                    let error = self.check_nowhere(answer);
                    return error.map_err(|e| format!("{e}: {}", shown()));
                }
                format!("{operation}/responses/{status}/content/{}", escaped(kind))
            }
        };
        if self.document.pointer(&content).is_none() {
            return Err(format!("not documented: {}", shown()));
        }
        if status == 429 && !answer.headers.contains_key("retry-after") {
            return Err(format!("no retry-after: {}", shown()));
        }
        match kind.as_str() {
            "application/json" => {
                let value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
                let schema = format!("{content}/schema");
                self.validate(&schema, &value)
                    .map_err(|e| format!("{e}: {}", shown()))
            }
            "text/event-stream" => {
                let chunk = format!("{content}/x-chunk");
                for event in events(&answer.body)?.0 {
                    let schema = if event.get("error").is_some() {
                        "/components/schemas/Error"
                    } else {
                        &chunk
                    };
                    self.validate(schema, &event)
                        .map_err(|e| format!("{e}: {event}"))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Where there is no operation, only these may be answered.
    fn check_nowhere(&self, answer: &Answer) -> Result<(), String> {
        let value = serde_json::from_slice(&answer.body).map_err(|e| e.to_string())?;
        self.validate("/components/schemas/Error", &value)?;
        match (answer.status, value["error"]["code"].as_str()) {
            (404, Some("not_found")) | (405, Some("method_not_allowed")) => Ok(()),
            other => Err(format!("{other:?} where there is nothing")),
        }
    }

    /// The path of the document that a request's path is one of.
    fn template(&self, path: &str) -> Option<&str> {
        let path = path.split('?').next().unwrap_or(path);
        let parts: Vec<_> = path.split('/').collect();
        let paths = self.document["paths"].as_object()?;
        paths.keys().map(String::as_str).find(|template| {
            let of_template: Vec<_> = template.split('/').collect();
            // The name of a model may have slashes.
            let open_end = *template == "/v1/models/{id}" && parts.len() >= of_template.len();
            (of_template.len() == parts.len() || open_end)
                && of_template.iter().zip(&parts).all(|(of_template, part)| {
                    of_template == part || of_template.starts_with('{') && !part.is_empty()
                })
        })
    }

    fn validate(&self, pointer: &str, value: &Value) -> Result<(), String> {
        let validator = self.validator(pointer)?;
        validator
            .validate(value)
            .map_err(|error| format!("at {}: {error}", error.instance_path()))
    }

    fn validator(&self, pointer: &str) -> Result<Rc<Validator>, String> {
        if let Some(validator) = self.validators.borrow().get(pointer) {
            return Ok(validator.clone());
        }
        let mut schema = self.document.clone();
        let reference = pointer.replace('{', "%7B").replace('}', "%7D");
        schema["$ref"] = json!(format!("#{reference}"));
        let validator = jsonschema::validator_for(&schema).map_err(|e| e.to_string())?;
        let validator = Rc::new(validator);
        let mut validators = self.validators.borrow_mut();
        validators.insert(pointer.to_owned(), validator.clone());
        Ok(validator)
    }
}

fn escaped(path: &str) -> String {
    path.replace('/', "~1")
}
