//! Statistics of repeated measurements.

/// A run is an outlier if it takes longer than this many medians.
const OUTLIER: f64 = 1.2;

/// Times of runs in seconds, sorted.
#[derive(Clone, Debug, PartialEq)]
pub struct Times(Vec<f64>);

impl Times {
    /// Panics if `times` is empty.
    pub fn new(mut times: Vec<f64>) -> Self {
        assert!(!times.is_empty(), "at least one run is needed");
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// The middle value, or the mean of the two middle values.
    pub fn median(&self) -> f64 {
        let (below, above) = ((self.0.len() - 1) / 2, self.0.len() / 2);
        f64::midpoint(self.0[below], self.0[above])
    }

    /// The fastest run.
    pub fn min(&self) -> f64 {
        self.0[0]
    }

    /// The slowest run.
    pub fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// Difference between slowest and fastest, relative to the median.
    pub fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median()
    }

    /// The number of outliers.
    pub fn outliers(&self) -> usize {
        let limit = OUTLIER * self.median();
        self.0.iter().filter(|time| **time > limit).count()
    }

    /// The number of runs, at least 1.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_median_and_what_is_far_above_it_an_outlier() {
        let times = Times::new(vec![3.0, 1.0, 1.1, 0.9]);
        assert_eq!((times.median(), times.min(), times.max(), times.count()), (1.05, 0.9, 3.0, 4));
        assert_eq!((times.outliers(), times.spread()), (1, 2.0));
        assert_eq!(Times::new(vec![2.0]).median(), 2.0);
        assert_eq!(Times::new(vec![1.0, 1.1, 1.15]).outliers(), 0);
    }
}
