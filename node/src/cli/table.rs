//! Columns that line up.

use tieline_proto::text;

/// Characters of a cell that are shown; more is cut with a mark.
const CELL_LEN_MAX: usize = 60;

/// Lays rows out in columns, two spaces apart. Cells are made safe to print; the last column is not padded.
pub fn columns(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| text::one_line(cell, CELL_LEN_MAX)).collect()).collect();
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A length of time, short: `850 ms`, `12 s`, `4 min`, `3 h`, `2 d`.
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{} s", ms / 1_000),
        60_000..3_600_000 => format!("{} min", ms / 60_000),
        3_600_000..86_400_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// A size, short: `900 B`, `12.0 KiB`, `3.4 MiB`.
pub fn size(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * 1024;
    // Tenths, so that no float rounds a size up to the next unit.
    let tenths = |unit: u64| format!("{}.{}", bytes / unit, bytes % unit * 10 / unit);
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => format!("{} KiB", tenths(KIB)),
        _ => format!("{} MiB", tenths(MIB)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_are_safe() {
        let rows = [["a", "bb", "x"], ["ccc", "d", "\x1b[2J"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows), "a    bb  x\nccc  d   ␛[2J\n");
        assert_eq!(columns(&[]), "");
    }

    #[test]
    fn spans_and_sizes_are_short() {
        assert_eq!(
            [0, 999, 1_000, 59_999, 60_000, 3_600_000, 200_000_000].map(span),
            ["0 ms", "999 ms", "1 s", "59 s", "1 min", "1 h", "2 d"]
        );
        assert_eq!(
            [0, 1023, 1024, 1536, 1_048_575, 26_214_400].map(size),
            ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1023.9 KiB", "25.0 MiB"]
        );
    }
}
