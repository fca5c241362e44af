//! Rows of the result, and the statistics they are made of.

use std::fmt;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

/// The result.
#[derive(Debug, Default)]
pub struct Report(Vec<Row>);

#[derive(Debug)]
struct Row {
    workload: &'static str,
    metric: String,
    value: f64,
    unit: &'static str,
    reference: Option<(String, f64)>,
}

impl Report {
    /// Adds a measurement beside its reference.
    pub fn beside(
        &mut self,
        workload: &'static str,
        metric: impl Into<String>,
        (value, unit): (f64, &'static str),
        reference: impl Into<String>,
        reference_value: f64,
    ) {
        let reference = Some((reference.into(), reference_value));
        self.0.push(Row { workload, metric: metric.into(), value, unit, reference });
    }

    /// Adds a measurement alone.
    pub fn alone(&mut self, workload: &'static str, metric: impl Into<String>, value: f64, unit: &'static str) {
        self.0.push(Row { workload, metric: metric.into(), value, unit, reference: None });
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

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.reference.as_ref().map(|(_, value)| self.value / value)
    }

    fn json(&self) -> Value {
        let (reference, reference_value) = self.reference.clone().unzip();
        json!({
            "workload": self.workload,
            "metric": self.metric,
            "value": self.value,
            "unit": self.unit,
            "reference": reference,
            "reference_value": reference_value,
            "ratio": self.ratio(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| workload | metric | value | unit | reference | its value | ratio |")?;
        writeln!(f, "|---|---|---:|---|---|---:|---:|")?;
        for row in &self.0 {
            let (reference, reference_value) = match &row.reference {
                Some((name, value)) => (name.as_str(), number(*value)),
                None => ("", String::new()),
            };
            let ratio = row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            writeln!(
                f,
                "| {} | {} | {} | {} | {reference} | {reference_value} | {ratio} |",
                row.workload,
                row.metric,
                number(row.value),
                row.unit
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
