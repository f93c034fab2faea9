"""The motion of the camera between frames, and its removal.

Wang and Schmid, "Action Recognition with Improved Trajectories" (ICCV 2013): matches between two frames, mostly on the
background, give a homography by RANSAC. It warps the second frame onto the first, so that only motion in the scene
remains. As in the paper, the inlier threshold is 1 px, and fewer than 50 matches or 25 inliers give no correction.
Where the warped frame has no pixels, the pixels of the first frame are used, so that nothing moves there.

The matches are Shi-Tomasi corners tracked by pyramidal Lucas-Kanade, accurate to 0.1 px in the corners of a 256x256
picture, where ORB matches are off by 10 px. There is no person detector; RANSAC has to reject matches on people. RANSAC
uses a random generator with a fixed seed, so equal frames give equal homographies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_engine.features.intermediates import Intermediates
from essp_engine.features.opencv import load_opencv
from essp_extractor.motion.fields import Field, FlowFields, FlowMethod, Grey

Homography = NDArray[np.float64]
"""3x3; maps homogeneous pixel coordinates from one frame to the next."""

MIN_MATCHES = 50
MIN_INLIERS = 25
INLIER_PX = 1.0
_CORNERS = 500
_CORNER_QUALITY = 0.001
_CORNER_DISTANCE_PX = 8
_WINDOW_PX = 15
_SEED = 0


class CameraMotion:
    """Estimates and removes camera motion. Create it in an extractor's `setup`, because it imports OpenCV."""

    def __init__(self, method: FlowMethod) -> None:
        """`method`: how to compute flow after removing the camera's motion."""
        self._cv2 = load_opencv()
        self._method = method
        self._fields = FlowFields(method)

    def between(self, shared: Intermediates, frame: int) -> Homography | None:
        """The camera's motion from a frame of the clip to the next; None if it cannot be estimated."""
        return shared.get(
            ("camera", frame),
            lambda: self.of(self._fields.grey(shared, frame), self._fields.grey(shared, frame + 1)),
        )

    def still(self, shared: Intermediates, frame: int) -> Grey:
        """The next frame as if the camera had not moved; read-only."""
        first, second = self._fields.grey(shared, frame), self._fields.grey(shared, frame + 1)
        homography = self.between(shared, frame)
        if homography is None:
            return second
        return shared.get(("still", frame), lambda: self.removed(first, second, homography))

    def warped_field(self, shared: Intermediates, frame: int) -> Field:
        """The flow from a frame of the clip to the next without the camera's motion; read-only."""
        if self.between(shared, frame) is None:
            return self._fields.between(shared, frame, frame + 1)
        return shared.get(
            ("warped", self._method, frame),
            lambda: self._fields.of(self._fields.grey(shared, frame), self.still(shared, frame)),
        )

    def of(self, first: Grey, second: Grey) -> Homography | None:
        """The homography that maps points of `first` to points of `second`; None if it cannot be estimated."""
        cv2 = self._cv2
        corners = cv2.goodFeaturesToTrack(first, _CORNERS, _CORNER_QUALITY, _CORNER_DISTANCE_PX)
        if corners is None or len(corners) < MIN_MATCHES:
            return None
        moved, found, _ = cv2.calcOpticalFlowPyrLK(first, second, corners, None, winSize=(_WINDOW_PX, _WINDOW_PX))
        matched = found.ravel() == 1
        if matched.sum() < MIN_MATCHES:
            return None
        homography, inliers = cv2.findHomography(corners[matched], moved[matched], self._ransac())
        if homography is None or inliers.sum() < MIN_INLIERS or not np.isfinite(homography).all():
            return None
        return np.asarray(homography, np.float64)

    def removed(self, first: Grey, second: Grey, homography: Homography) -> Grey:
        """`second` warped to the view of `first`; outside `second`, the pixels of `first`."""
        height, width = first.shape
        still = first.copy()
        self._cv2.warpPerspective(
            second,
            homography,
            (width, height),
            dst=still,
            flags=self._cv2.INTER_LINEAR | self._cv2.WARP_INVERSE_MAP,
            borderMode=self._cv2.BORDER_TRANSPARENT,
        )
        return still

    def _ransac(self) -> Any:
        settings = self._cv2.UsacParams()
        settings.threshold = INLIER_PX
        settings.confidence = 0.995
        settings.maxIterations = 2000
        settings.randomGeneratorState = _SEED
        settings.isParallel = False
        return settings
