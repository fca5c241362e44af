//! Rows of the result, and the statistics they are made of.

use std::fmt;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

/// The result.
#[derive(Debug, Default)]
pub struct Report(Vec<Row>);

/// One measurement: a value for each round, and what it is judged by.
#[derive(Debug)]
pub struct Row {
    workload: &'static str,
    metric: String,
    unit: &'static str,
    rounds: Vec<f64>,
    reference: Option<Reference>,
    aim: Option<Aim>,
}

/// What was measured beside it in the same rounds, in turns.
#[derive(Debug)]
struct Reference {
    name: String,
    rounds: Vec<f64>,
}

/// What the measurement is to reach.
#[derive(Clone, Copy, Debug)]
enum Aim {
    ValueAtMost(f64),
    ValueAtLeast(f64),
    RatioAtMost(f64),
    RatioAtLeast(f64),
}

impl Row {
    /// A measurement with its value in each round.
    pub fn new(workload: &'static str, metric: impl Into<String>, unit: &'static str, rounds: Vec<f64>) -> Self {
        Self { workload, metric: metric.into(), unit, rounds, reference: None, aim: None }
    }

    /// Puts it beside what the same rounds gave for something else.
    pub fn beside(mut self, name: impl Into<String>, rounds: Vec<f64>) -> Self {
        self.reference = Some(Reference { name: name.into(), rounds });
        self
    }

    /// It is to be at most this.
    pub const fn at_most(mut self, aim: f64) -> Self {
        self.aim = Some(Aim::ValueAtMost(aim));
        self
    }

    /// It is to be at least this.
    pub const fn at_least(mut self, aim: f64) -> Self {
        self.aim = Some(Aim::ValueAtLeast(aim));
        self
    }

    /// Its ratio to the reference is to be at most this.
    pub const fn ratio_at_most(mut self, aim: f64) -> Self {
        self.aim = Some(Aim::RatioAtMost(aim));
        self
    }

    /// Its ratio to the reference is to be at least this.
    pub const fn ratio_at_least(mut self, aim: f64) -> Self {
        self.aim = Some(Aim::RatioAtLeast(aim));
        self
    }

    fn value(&self) -> f64 {
        median(self.rounds.clone())
    }

    /// The median of the rounds' own ratios: what disturbs a whole round disturbs both sides of it.
    fn ratio(&self) -> Option<f64> {
        let reference = self.reference.as_ref()?;
        Some(median(self.rounds.iter().zip(&reference.rounds).map(|(value, other)| value / other).collect()))
    }

    /// Whether it is what it is to be; `None` when nothing is asked of it.
    fn met(&self) -> Option<bool> {
        Some(match self.aim? {
            Aim::ValueAtMost(aim) => self.value() <= aim,
            Aim::ValueAtLeast(aim) => self.value() >= aim,
            Aim::RatioAtMost(aim) => self.ratio()? <= aim,
            Aim::RatioAtLeast(aim) => self.ratio()? >= aim,
        })
    }

    fn aim(&self) -> Option<String> {
        Some(match self.aim? {
            Aim::ValueAtMost(aim) => format!("≤ {aim} {}", self.unit),
            Aim::ValueAtLeast(aim) => format!("≥ {aim} {}", self.unit),
            Aim::RatioAtMost(aim) => format!("ratio ≤ {aim}"),
            Aim::RatioAtLeast(aim) => format!("ratio ≥ {aim}"),
        })
    }

    fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "metric": self.metric,
            "value": self.value(),
            "unit": self.unit,
            "reference": self.reference.as_ref().map(|reference| &reference.name),
            "reference_value": self.reference.as_ref().map(|reference| median(reference.rounds.clone())),
            "ratio": self.ratio(),
            "rounds": self.rounds,
            "aim": self.aim(),
            "met": self.met(),
        })
    }
}

impl Report {
    /// Adds a row.
    pub fn add(&mut self, row: Row) {
        self.0.push(row);
    }

    /// Whether everything is what it is to be.
    pub fn is_met(&self) -> bool {
        self.0.iter().all(|row| row.met() != Some(false))
    }

    /// Writes the rows as JSON.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &str) -> Result<(), std::io::Error> {
        let rows: Vec<Value> = self.0.iter().map(Row::json).collect();
        if let Some(folder) = std::path::Path::new(path).parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{:#}\n", Value::Array(rows)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| workload | metric | value | unit | reference | its value | ratio | aim | |")?;
        writeln!(f, "|---|---|---:|---|---|---:|---:|---|---|")?;
        for row in &self.0 {
            let (reference, reference_value) = match &row.reference {
                Some(reference) => (reference.name.as_str(), number(median(reference.rounds.clone()))),
                None => ("", String::new()),
            };
            let ratio = row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let (value, aim) = (number(row.value()), row.aim().unwrap_or_default());
            let met = row.met().map_or("", |met| if met { "met" } else { "**not met**" });
            let Row { workload, metric, unit, .. } = row;
            writeln!(
                f,
                "| {workload} | {metric} | {value} | {unit} | {reference} | {reference_value} | {ratio} | {aim} | {met} |"
            )?;
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// Durations of one kind of operation.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Adds one.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    /// Adds all of another.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// A quantile in milliseconds; 0 of none.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
        let at = (sorted.len().saturating_sub(1) as f64 * quantile).round() as usize;
        sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }

    /// The median in milliseconds.
    pub fn p50_ms(&self) -> f64 {
        self.quantile_ms(0.5)
    }

    /// The 99th percentile in milliseconds.
    pub fn p99_ms(&self) -> f64 {
        self.quantile_ms(0.99)
    }
}

/// The median of several rounds.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
