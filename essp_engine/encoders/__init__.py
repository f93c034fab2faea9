"""Encoders of local descriptors: from any number of rows of a video to one vector, for a linear classifier.

    rows of all training videos ─▶ subsample ─▶ PCA ─▶ k-means or mixture of Gaussians        (learned once)
    rows of one video ─▶ without padding ─▶ PCA ─▶ Fisher vector | VLAD | bag of words ─▶ power and L2 normalisation
    vectors with labels ─▶ linear classifier
    features at places of a clip ─▶ compact bilinear pooling ─▶ power and L2 normalisation

All of it is in double precision, and the same rows give the same numbers. What is learned is a dataclass whose fields
are arrays: `vars(mixture)` is a state that can be stored, `Mixture(**state)` restores it. NumPy alone uses it; to learn
it takes scikit-learn and SciPy, which are imported where that begins: the master has neither.
"""
