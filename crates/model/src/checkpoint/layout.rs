//! The files of a checkpoint: the rank that writes each, and its length.
//!
//! A transformer is cut three ways: tensors over `tensor` ranks, layers over `pipeline` stages, and copies over `data`
//! groups. ZeRO says what the copies keep for themselves: at stages 1 and 2 each keeps a part of the optimizer's state,
//! at 3 a part of the layers, too. Sizes are DLIO's (v2.0): every parameter in the model's type, and per parameter three
//! values of the optimizer's, with five hidden dimensions beside each. Ranks count tensor-first, then stage, then copy.

use crate::Error;
use serde::{Deserialize, Serialize};

/// Every dimension and degree is at most this: a checkpoint's bytes then fit 64 bits.
const DIMENSION_MAX: u64 = 1 << 18;
/// Files of one copy of the model: a tensor rank writes one for each layer.
const FILES_MAX: u64 = 1 << 22;
/// Values that an optimizer keeps per parameter: itself, and its two moments.
const OPTIMIZER_VALUES: u64 = 3;

/// A transformer and how it is cut. Element types are given by their length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    pub layers: u64,
    pub hidden: u64,
    pub ffn_hidden: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub vocab: u64,
    /// Bytes of one parameter as the model keeps it (2: fp16).
    pub model_type_bytes: u64,
    /// Bytes of one of the optimizer's values (4: fp32).
    pub optimizer_type_bytes: u64,
    pub tensor: u64,
    pub pipeline: u64,
    pub data: u64,
    /// 0 to 3.
    pub zero_stage: u8,
}

/// Content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Model,
    Optimizer,
}

/// One file of one rank, by its name in the checkpoint's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    pub name: String,
    pub part: Part,
    pub bytes: u64,
}

/// Bytes of a checkpoint, or of some ranks' part of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub model: u64,
    pub optimizer: u64,
    pub files: u64,
}

impl Sizes {
    pub fn bytes(&self) -> u64 {
        self.model + self.optimizer
    }
}

impl Model {
    pub fn check(&self) -> Result<(), Error> {
        let named = [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("ffn_hidden", self.ffn_hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("vocab", self.vocab),
            ("model_type_bytes", self.model_type_bytes),
            ("optimizer_type_bytes", self.optimizer_type_bytes),
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("data", self.data),
        ];
        for (name, value) in named {
            if value == 0 || value > DIMENSION_MAX {
                let found = format!("must be 1 to {DIMENSION_MAX}");
                return Err(refused(format!("{name} = {value}"), found));
            }
        }
        if self.heads > self.hidden || self.pipeline > self.layers {
            let found = "a head needs a dimension, and a pipeline stage a layer";
            let asked = format!("{} heads, {} stages", self.heads, self.pipeline);
            return Err(refused(asked, found.into()));
        }
        if self.zero_stage > 3 {
            return Err(refused(format!("zero_stage = {}", self.zero_stage), "must be 0 to 3".into()));
        }
        if self.model_type_bytes > 8 || self.optimizer_type_bytes > 8 {
            return Err(refused("an element's length".into(), "must be 1 to 8 bytes".into()));
        }
        if self.layers * self.tensor > FILES_MAX {
            let asked = format!("layers × tensor = {}", self.layers * self.tensor);
            return Err(refused(asked, format!("at most {FILES_MAX} files")));
        }
        if self.tensor * self.pipeline > DIMENSION_MAX || self.ranks() > DIMENSION_MAX {
            let found = format!("at most {DIMENSION_MAX} ranks");
            return Err(refused(format!("tensor × pipeline × data = {}", self.ranks()), found));
        }
        Ok(())
    }

    /// Ranks that write one whole checkpoint.
    pub fn ranks(&self) -> u64 {
        self.tensor * self.pipeline * self.data
    }

    /// Ranks that together hold one copy of the model.
    pub fn ranks_per_copy(&self) -> u64 {
        self.tensor * self.pipeline
    }

    fn kv_dimension(&self) -> u64 {
        self.hidden / self.heads * self.kv_heads
    }

    /// Parameters of the whole model.
    pub fn parameters(&self) -> u64 {
        let embedding = self.vocab * self.hidden;
        let attention = self.hidden * (2 * self.hidden + 2 * self.kv_dimension());
        let layer = attention + 3 * self.hidden * self.ffn_hidden + 2 * self.hidden;
        2 * embedding + self.layers * layer + self.hidden
    }

    /// Parameters of one layer on one rank. Layer 0 is the embedding; after the transformer's own layers come the
    /// output projection and the last norm. Norms are whole on every tensor rank; at stage 3 all is shared out over
    /// the copies.
    fn layer_parameters(&self, layer: u64) -> u64 {
        let copies = if self.zero_stage < 3 { 1 } else { self.data };
        let cut = |parameters: u64| parameters / self.tensor / copies;
        let norm = self.hidden / copies;
        if layer == 0 || layer == self.layers + 1 {
            return cut(self.hidden * self.vocab);
        }
        if layer == self.layers + 2 {
            return norm;
        }
        2 * norm
            + cut(self.hidden * (self.hidden + 2 * self.kv_dimension()))
            + cut(self.hidden * self.hidden)
            + cut(self.hidden * 2 * self.ffn_hidden)
            + cut(self.hidden * self.ffn_hidden)
    }

    /// First and last layer of a stage. The first stage has the embedding, the last one what follows the layers.
    fn layers_of(&self, stage: u64) -> (u64, u64) {
        let (each, more) = (self.layers / self.pipeline, self.layers % self.pipeline);
        let first = stage * each + stage.min(more) + 1;
        let last = first + each + u64::from(stage < more) - 1;
        let first = if stage == 0 { 0 } else { first };
        let last = if stage + 1 == self.pipeline { self.layers + 2 } else { last };
        (first, last)
    }

    /// The files of one rank, in the order in which it writes them.
    pub fn files_of(&self, rank: u64) -> Vec<FilePlan> {
        let of_copy = self.ranks_per_copy();
        let (copy, within) = (rank / of_copy, rank % of_copy);
        if self.zero_stage == 0 && copy > 0 {
            return Vec::new();
        }
        let mut files = self.model_files(copy, within);
        let share = if self.zero_stage == 0 { of_copy } else { of_copy * self.data };
        let shard = self.parameters() / share;
        if shard > 0 {
            let values = OPTIMIZER_VALUES * (shard + 5 * self.hidden);
            files.push(FilePlan {
                name: format!("zero_pp_rank_{copy}_mp_rank_{within}_optim_states.bin"),
                part: Part::Optimizer,
                bytes: values * self.optimizer_type_bytes,
            });
        }
        files
    }

    fn model_files(&self, copy: u64, within: u64) -> Vec<FilePlan> {
        let (first, last) = self.layers_of(within / self.tensor % self.pipeline);
        let bytes_of = |layer: u64| self.layer_parameters(layer) * self.model_type_bytes;
        let file = |name: String, bytes: u64| FilePlan { name, part: Part::Model, bytes };
        let whole = || (first..=last).map(bytes_of).sum();
        match self.zero_stage {
            // Copies are alike: the first one writes, a file for each layer where stages share the model.
            1 | 2 if copy > 0 => Vec::new(),
            1 | 2 if self.pipeline > 1 => (first..=last)
                .map(|layer| file(format!("layer_{layer}-model_{within}_model_states.bin"), bytes_of(layer)))
                .collect(),
            1 | 2 => vec![file(format!("model_{within}_model_states.bin"), whole())],
            _ => vec![file(format!("zero_pp_rank_{copy}_mp_rank_{within}_model_states.bin"), whole())],
        }
    }

    /// Bytes that these ranks write together, each file scaled by `scaled`.
    pub fn sizes(&self, ranks: std::ops::Range<u64>, scale: f64) -> Sizes {
        ranks.flat_map(|rank| self.files_of(rank)).fold(Sizes::default(), |sizes, file| {
            let bytes = scaled(file.bytes, scale);
            match file.part {
                Part::Model => Sizes { model: sizes.model + bytes, files: sizes.files + 1, ..sizes },
                Part::Optimizer => {
                    Sizes { optimizer: sizes.optimizer + bytes, files: sizes.files + 1, ..sizes }
                }
            }
        })
    }
}

/// A file's length at this scale: exact at 1, never empty.
pub fn scaled(bytes: u64, scale: f64) -> u64 {
    if scale == 1.0 {
        bytes
    } else {
        ((bytes as f64 * scale).round() as u64).max(1)
    }
}

fn refused(asked: String, found: String) -> Error {
    Error::request(asked, found, "forebay emulate checkpoint --workload llama3-8b")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::units::BYTES_PER_GIB as GIB;

    pub fn llama(
        [layers, hidden, ffn_hidden, heads, kv_heads]: [u64; 5],
        [tensor, pipeline, data]: [u64; 3],
        zero_stage: u8,
    ) -> Model {
        Model {
            layers,
            hidden,
            ffn_hidden,
            heads,
            kv_heads,
            vocab: 128_256,
            model_type_bytes: 2,
            optimizer_type_bytes: 4,
            tensor,
            pipeline,
            data,
            zero_stage,
        }
    }

    pub fn llama_8b() -> Model {
        llama([32, 4096, 14_336, 32, 8], [1, 1, 8], 3)
    }

    /// Model and its published GiB: layers, optimizer, both. A published TB is 1000 of them.
    fn published() -> [(Model, [f64; 3]); 3] {
        [
            (llama_8b(), [15.0, 90.0, 105.0]),
            (llama([80, 8192, 28_672, 128, 8], [8, 1, 8], 3), [130.0, 781.0, 912.0]),
            (llama([126, 16_384, 53_248, 128, 8], [8, 32, 2], 1), [755.0, 4533.0, 5290.0]),
        ]
    }

    // promise: CKP-1
    #[test]
    fn sums_are_the_published_sizes() {
        for (model, [states, optimizer, both]) in published() {
            model.check().unwrap();
            let sizes = model.sizes(0..model.ranks(), 1.0);
            // Published numbers are rounded to a GiB, those of the largest down to the one before last.
            let near = |bytes: u64, gib: f64| (bytes as f64 / GIB - gib).abs() <= 1.0 + gib / 1000.0;
            assert!(near(sizes.model, states), "{} for {states}", sizes.model as f64 / GIB);
            assert!(near(sizes.optimizer, optimizer), "{} for {optimizer}", sizes.optimizer as f64 / GIB);
            assert!(near(sizes.bytes(), both), "{} for {both}", sizes.bytes() as f64 / GIB);
        }
    }

    /// The table's 18 TB (2571 and 15,426) aren't what DLIO writes for the dimensions that stand beside them: all of
    /// the checkpoint comes to what the table has for the optimizer alone.
    #[test]
    fn one_trillion_is_less_than_published() {
        let model = llama([128, 25_872, 98_304, 192, 32], [8, 64, 2], 1);
        let sizes = model.sizes(0..model.ranks(), 1.0);
        assert_eq!((sizes.bytes() as f64 / GIB).round(), 15_427.0);
        assert_eq!((sizes.model as f64 / GIB).round(), 2204.0);
        assert_eq!(model.parameters(), 1_183_035_102_480);
    }

    /// Worked by hand from the dimensions: 8.03 billion parameters, as the model's card says.
    #[test]
    fn parameters_of_8b() {
        let embeddings = 2 * 128_256 * 4096;
        let layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336 + 2 * 4096;
        assert_eq!(llama_8b().parameters(), embeddings + 32 * layer + 4096);
        assert_eq!(llama_8b().parameters(), 8_030_261_248);
    }

    #[test]
    fn eight_ranks_of_8b_write_two_files_each_of_one_size() {
        let model = llama_8b();
        let first = model.files_of(0);
        assert_eq!(first.len(), 2);
        assert_eq!(first[1].bytes, 3 * (8_030_261_248 / 8 + 5 * 4096) * 4);
        for rank in 1..8 {
            let sizes: Vec<u64> = model.files_of(rank).iter().map(|f| f.bytes).collect();
            assert_eq!(sizes, first.iter().map(|f| f.bytes).collect::<Vec<_>>());
        }
    }

    // promise: CKP-1
    #[test]
    fn at_stage_1_only_the_first_copy_writes_layers_one_file_each() {
        let model = llama([126, 16_384, 53_248, 128, 8], [8, 32, 2], 1);
        let names = |rank: u64| model.files_of(rank).into_iter().map(|f| f.name).collect::<Vec<_>>();
        // The first stage: the embedding and its four layers (126 over 32 stages leave 30 a layer more than 3).
        assert_eq!(names(0).len(), 1 + 4 + 1);
        assert_eq!(names(0)[0], "layer_0-model_0_model_states.bin");
        // The last stage: its three layers, the projection and the norm.
        assert_eq!(names(255).len(), 3 + 2 + 1);
        assert_eq!(names(255)[4], "layer_128-model_255_model_states.bin");
        assert_eq!(names(256), ["zero_pp_rank_1_mp_rank_0_optim_states.bin"]);
    }

    #[test]
    fn without_zero_only_the_first_copy_writes() {
        let model = Model { zero_stage: 0, ..llama_8b() };
        assert_eq!(model.files_of(0).len(), 2);
        assert!((1..8).all(|rank| model.files_of(rank).is_empty()));
        assert_eq!(model.files_of(0)[1].bytes, 3 * (8_030_261_248 + 5 * 4096) * 4);
    }

    #[test]
    fn what_can_not_be_is_refused() {
        let bad = [
            Model { layers: 0, ..llama_8b() },
            Model { vocab: u64::MAX, ..llama_8b() },
            Model { heads: 5000, ..llama_8b() },
            Model { pipeline: 33, ..llama_8b() },
            Model { zero_stage: 4, ..llama_8b() },
            Model { optimizer_type_bytes: 16, ..llama_8b() },
            Model { tensor: 1 << 10, data: 1 << 9, ..llama_8b() },
            Model { layers: 1 << 17, tensor: 64, ..llama_8b() },
        ];
        for model in bad {
            assert_eq!(model.check().unwrap_err().kind, crate::Kind::Request, "{model:?}");
        }
    }

    proptest! {
        /// Whatever the cut, stages share out every layer once, names are unique, and the parts add up to the whole
        /// but for what rounding leaves over (norms are repeated on every tensor rank).
        // promise: CKP-1
        #[test]
        fn parts_add_up(
            layers in 1u64..60, hidden in 8u64..600, ffn_hidden in 8u64..600, heads in 1u64..8, vocab in 1u64..999,
            tensor in 1u64..5, pipeline in 1u64..9, data in 1u64..5, zero_stage in 0u8..4,
        ) {
            let model = Model {
                layers, hidden, ffn_hidden, heads, kv_heads: heads, vocab, model_type_bytes: 2,
                optimizer_type_bytes: 4, tensor, pipeline: pipeline.min(layers), data, zero_stage,
            };
            model.check().unwrap();
            let mut layer = 0;
            for stage in 0..model.pipeline {
                let (first, last) = model.layers_of(stage);
                prop_assert_eq!(first, layer);
                prop_assert!(last >= first);
                layer = last + 1;
            }
            prop_assert_eq!(layer, layers + 3);
            let files: Vec<FilePlan> = (0..model.ranks()).flat_map(|r| model.files_of(r)).collect();
            let names: std::collections::BTreeSet<&str> = files.iter().map(|f| f.name.as_str()).collect();
            prop_assert_eq!(names.len(), files.len());
            let sizes = model.sizes(0..model.ranks(), 1.0);
            prop_assert_eq!(sizes.files, files.len() as u64);
            let copies = if zero_stage == 3 { data } else { 1 };
            let norms = (2 * layers + 1) * hidden * (tensor - 1);
            let tensors = 6 * layers + 3;
            let most = (model.parameters() + norms) * 2;
            let least = most.saturating_sub(tensors * tensor * copies * 2 * 2);
            prop_assert!((least..=most).contains(&sizes.model), "{} in {least}..={most}", sizes.model);
            let writers = if zero_stage == 0 { model.ranks_per_copy() } else { model.ranks() };
            if model.parameters() >= writers {
                let beside = 15 * hidden * 4 * writers;
                let most = model.parameters() * 12 + beside;
                prop_assert!(sizes.optimizer <= most && sizes.optimizer + 12 * writers > most);
            }
        }

        #[test]
        fn a_scale_never_empties_a_file(bytes in 1u64..1 << 40, scale in 1e-9f64..1.0) {
            prop_assert!(scaled(bytes, scale) >= 1);
            prop_assert!(scaled(bytes, scale) <= bytes.max(1));
            prop_assert_eq!(scaled(bytes, 1.0), bytes);
        }
    }
}
