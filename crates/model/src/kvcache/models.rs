//! Bytes of key-value cache that one token takes, by model.

use crate::Error;

/// A name, and the sum that its bytes come from.
pub struct Named {
    pub name: &'static str,
    pub shape: Shape,
}

/// What a model keeps of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A key and a value for each layer and head.
    Heads { layers: u64, kv_heads: u64, head_dim: u64, element_bytes: u64 },
    /// Multi-head latent attention: one compressed vector for each layer, and its rotary part.
    Latent { layers: u64, lora_rank: u64, rope_dim: u64, element_bytes: u64 },
}

const fn heads(layers: u64, kv_heads: u64, head_dim: u64) -> Shape {
    Shape::Heads { layers, kv_heads, head_dim, element_bytes: 2 }
}

/// The reference's models. Its `tiny-1b` gives bytes alone; these dimensions make them.
pub const MODELS: [Named; 9] = [
    Named { name: "llama3.1-8b", shape: heads(32, 8, 128) },
    Named { name: "llama3.1-70b-instruct", shape: heads(80, 8, 128) },
    Named { name: "llama2-7b", shape: heads(32, 32, 128) },
    Named { name: "mistral-7b", shape: heads(32, 8, 128) },
    Named { name: "qwen3-32b", shape: heads(64, 8, 128) },
    Named {
        name: "deepseek-v3",
        shape: Shape::Latent { layers: 61, lora_rank: 512, rope_dim: 64, element_bytes: 2 },
    },
    Named { name: "gpt-oss-120b", shape: heads(36, 8, 64) },
    Named { name: "gpt-oss-20b", shape: heads(24, 8, 64) },
    Named { name: "tiny-1b", shape: heads(12, 4, 128) },
];

/// Element types that a cache is kept in.
const TYPES: [(&str, u64); 7] =
    [("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1), ("float16", 2), ("bfloat16", 2)];
const KEYS: [&str; 6] = ["layers", "kv_heads", "head_dim", "kv_lora_rank", "rope_dim", "dtype"];
/// No model has more of anything.
const DIMENSION_MAX: u64 = 1 << 20;
/// A token of more bytes is a slip.
const TOKEN_BYTES_MAX: u64 = 1 << 30;

impl Shape {
    /// Bytes of one token.
    pub fn token_bytes(self) -> u64 {
        match self {
            Shape::Heads { layers, kv_heads, head_dim, element_bytes } => {
                2 * layers * kv_heads * head_dim * element_bytes
            }
            Shape::Latent { layers, lora_rank, rope_dim, element_bytes } => {
                layers * (lora_rank + rope_dim) * element_bytes
            }
        }
    }

    /// Reads a name, or `layers=32,kv_heads=8,head_dim=128,dtype=bf16`, or `layers=61,kv_lora_rank=512,rope_dim=64`.
    ///
    /// # Errors
    /// `Request`: no model has this name; a key is unknown, missing, twice there or out of bounds.
    pub fn parse(text: &str) -> Result<Shape, Error> {
        if !text.contains('=') {
            let named = MODELS.iter().find(|m| m.name.eq_ignore_ascii_case(text.trim()));
            return named.map(|m| m.shape).ok_or_else(|| {
                let known: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
                let next = format!("{}; or layers=32,kv_heads=8,head_dim=128,dtype=bf16", known.join(", "));
                Error::request(format!("--model {text}"), "is not a model that Forebay knows", next)
            });
        }
        let mut values: [Option<u64>; 6] = [None; 6];
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(at) = KEYS.iter().position(|known| *known == key.trim()) else {
                return Err(wrong(text, &format!("there is no key {key:?}")));
            };
            if values[at].replace(Self::value(text, key, value.trim())?).is_some() {
                return Err(wrong(text, &format!("{key} is given twice")));
            }
        }
        let element_bytes = values[5].unwrap_or(2);
        let shape = match values {
            [Some(layers), Some(kv_heads), Some(head_dim), None, None, _] => {
                Shape::Heads { layers, kv_heads, head_dim, element_bytes }
            }
            [Some(layers), None, None, Some(lora_rank), rope, _] => {
                Shape::Latent { layers, lora_rank, rope_dim: rope.unwrap_or(0), element_bytes }
            }
            _ => {
                return Err(wrong(text, "it needs layers, and either kv_heads and head_dim or kv_lora_rank"))
            }
        };
        if shape.checked_bytes().is_none_or(|bytes| bytes == 0 || bytes > TOKEN_BYTES_MAX) {
            return Err(wrong(text, "a token of more than 1 GiB isn't a model's"));
        }
        Ok(shape)
    }

    fn checked_bytes(self) -> Option<u64> {
        let product = |parts: &[u64]| parts.iter().try_fold(1u64, |all, part| all.checked_mul(*part));
        match self {
            Shape::Heads { layers, kv_heads, head_dim, element_bytes } => {
                product(&[2, layers, kv_heads, head_dim, element_bytes])
            }
            Shape::Latent { layers, lora_rank, rope_dim, element_bytes } => {
                product(&[layers, lora_rank + rope_dim, element_bytes])
            }
        }
    }

    fn value(text: &str, key: &str, value: &str) -> Result<u64, Error> {
        if key.trim() == "dtype" {
            let found = TYPES.iter().find(|(name, _)| *name == value);
            return found.map(|(_, bytes)| *bytes).ok_or_else(|| {
                let known: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
                wrong(text, &format!("dtype={value} is none of {}", known.join(", ")))
            });
        }
        let number = value.parse::<u64>().ok().filter(|n| (1..=DIMENSION_MAX).contains(n));
        number.ok_or_else(|| wrong(text, &format!("{key}={value} is not a number from 1 to {DIMENSION_MAX}")))
    }
}

fn wrong(text: &str, found: &str) -> Error {
    Error::request(format!("--model {text}"), found, "--model layers=32,kv_heads=8,head_dim=128,dtype=bf16")
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: KVC-1
    #[test]
    fn a_token_of_each_model_has_the_bytes_of_the_reference() {
        let published = [
            ("llama3.1-8b", 131_072),
            ("mistral-7b", 131_072),
            ("llama3.1-70b-instruct", 327_680),
            ("llama2-7b", 524_288),
            ("qwen3-32b", 262_144),
            ("deepseek-v3", 70_272),
            ("gpt-oss-120b", 73_728),
            ("gpt-oss-20b", 49_152),
            ("tiny-1b", 24_576),
        ];
        for (name, bytes) in published {
            assert_eq!(Shape::parse(name).unwrap().token_bytes(), bytes, "{name}");
        }
        assert_eq!(published.len(), MODELS.len());
        let own = Shape::parse("layers=32,kv_heads=8,head_dim=128,dtype=fp8").unwrap();
        assert_eq!(own.token_bytes(), 65_536);
        let latent = Shape::parse("layers=61,kv_lora_rank=512,rope_dim=64").unwrap();
        assert_eq!(latent.token_bytes(), 70_272);
    }

    #[test]
    fn a_model_that_cannot_be_is_refused_with_what_can() {
        for (text, names) in [
            ("llama9", "llama3.1-8b"),
            ("layers=1,kv_heads=1", "head_dim"),
            ("layers=0,kv_heads=1,head_dim=1", "layers=0"),
            ("layers=1,layers=1", "twice"),
            ("layers=1,head=3", "head"),
            ("layers=1048576,kv_heads=1048576,head_dim=1048576", "1 GiB"),
            ("layers=1,kv_lora_rank=1,dtype=fp7", "fp8"),
            ("", "llama3.1-8b"),
        ] {
            let error = Shape::parse(text).unwrap_err();
            assert!(error.to_string().contains(names), "{text}: {error}");
        }
    }
}
