"""Encoders of local descriptors: from any number of rows of a video to one vector, for a linear classifier.

    rows of all training videos ─▶ subsample ─▶ PCA ─▶ k-means or mixture of Gaussians        (learned once)
    rows of one video ─▶ without padding ─▶ PCA ─▶ Fisher vector | VLAD | bag of words ─▶ power and L2 normalisation
    vectors with labels ─▶ linear classifier
    features at places of a clip ─▶ compact bilinear pooling ─▶ power and L2 normalisation

All computations use double precision, and equal rows give equal results. The learned parts are dataclasses of arrays:
`vars(mixture)` is a state that can be stored, and `Mixture(**state)` restores it. Encoding needs only NumPy. Learning
needs scikit-learn and SciPy, which are imported where it begins, because the master does not have them.
"""
