//! What is said of several runs of one thing.

/// Runs slower than this many medians are told of.
const OUTLIER: f64 = 1.2;

/// Times of runs, seconds, sorted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Panics without any.
    pub(crate) fn new(mut times: Vec<f64>) -> Self {
        assert!(!times.is_empty(), "there is a run at least");
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// The middle one, or the mean of the two in the middle.
    pub(crate) fn median(&self) -> f64 {
        let (below, above) = ((self.0.len() - 1) / 2, self.0.len() / 2);
        f64::midpoint(self.0[below], self.0[above])
    }

    pub(crate) fn min(&self) -> f64 {
        self.0[0]
    }

    pub(crate) fn max(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// How far the slowest is from the fastest, as a part of the median.
    pub(crate) fn spread(&self) -> f64 {
        (self.max() - self.min()) / self.median()
    }

    /// How many took much longer than the median.
    pub(crate) fn outliers(&self) -> usize {
        let limit = OUTLIER * self.median();
        self.0.iter().filter(|time| **time > limit).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_median_and_what_is_far_above_it_an_outlier() {
        let times = Times::new(vec![3.0, 1.0, 1.1, 0.9]);
        assert_eq!((times.median(), times.min(), times.max(), times.len()), (1.05, 0.9, 3.0, 4));
        assert_eq!((times.outliers(), times.spread()), (1, 2.0));
        assert_eq!(Times::new(vec![2.0]).median(), 2.0);
        assert_eq!(Times::new(vec![1.0, 1.1, 1.15]).outliers(), 0);
    }
}
