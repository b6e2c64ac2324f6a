"""Makes digits.npy and digits.labels again, byte for byte. Needs numpy and scikit-learn."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

here = Path(__file__).resolve().parent
digits = load_digits()
np.save(here / "digits.npy", np.ascontiguousarray(digits.data, dtype="<f4"))
(here / "digits.labels").write_text("".join(f"{digit}\n" for digit in digits.target))
