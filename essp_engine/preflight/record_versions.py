"""Which version of its data sets of records a job sees: the one that it names, else the newest when it begins.

Data sets grow while jobs run. So the versions are written into the specification, and a job that goes on keeps those
that its output names.
"""

from __future__ import annotations

from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.records.rows import FIELDS
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores


def with_versions(spec: JobSpec, stores: Stores, known: JobSpec | None) -> JobSpec:
    """The job with the version of each data set. `known`: the job in its output, which goes on.

    Raises `ConfigError` for a data set that is not there.
    """
    sets = spec.data.record_sets
    if not sets or sets.keys() == spec.data.versions.keys():
        return spec
    versions = dict(known.data.versions) if known is not None and known.data.record_sets == sets else {}
    versions |= spec.data.versions
    for split, uri in sets.items():
        if split not in versions:
            try:
                versions[split], _ = DataSet(stores.under(uri)).version()
            except (ConfigError, NotFound, PermanentError) as error:
                raise ConfigError.at(FIELDS[split], error) from error
    return spec.model_copy(update={"data": spec.data.model_copy(update={"versions": versions})})
