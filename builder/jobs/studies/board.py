"""A study in TensorBoard: its HParams page, with a session for each trial."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from builder.jobs.description import Parameter, Study
from builder.jobs.eventfiles import without_tensorflow
from builder.jobs.studies.results import TrialResult


class Board:
    """TensorBoard's HParams: the study at the folder's root, a session for each trial.

    The messages are made here: TensorBoard's own makers of them import TensorFlow.
    """

    def __init__(self, folder: Path, study: Study) -> None:
        from tensorboard.plugins.hparams import metadata  # type: ignore[import-untyped]

        self.folder = folder
        self.study = study
        api, data = _messages()
        experiment = api.Experiment(
            time_created_secs=time.time(),
            hparam_infos=[_hparam(api, name, one) for name, one in study.parameters.items()],
            metric_infos=[api.MetricInfo(name=api.MetricName(tag=study.metric))],
        )
        content = data.HParamsPluginData(experiment=experiment)
        _write(folder / "logs", [(0, _hparams_summary(metadata.EXPERIMENT_TAG, content))])

    def write(self, trial: TrialResult) -> None:
        """The trial's parameters and the curve of its metric."""
        from tensorboard.plugins.hparams import metadata

        api, data = _messages()
        start = data.SessionStartInfo(
            group_name=str(trial.number), start_time_secs=time.time() - trial.seconds
        )
        for name, value in trial.parameters.items():
            if isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        status = api.STATUS_SUCCESS if trial.value is not None else api.STATUS_FAILURE
        end = data.SessionEndInfo(status=status, end_time_secs=time.time())
        begun = data.HParamsPluginData(session_start_info=start)
        ended = data.HParamsPluginData(session_end_info=end)
        events = [(0, _hparams_summary(metadata.SESSION_START_INFO_TAG, begun))]
        events += [(at.step, _scalar(self.study.metric, at.value)) for at in trial.curve]
        events.append((0, _hparams_summary(metadata.SESSION_END_INFO_TAG, ended)))
        _write(self.folder / str(trial.number) / "logs", events)


def _messages() -> tuple[Any, Any]:
    without_tensorflow()
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    return api_pb2, plugin_data_pb2


def _hparam(api: Any, name: str, one: Parameter) -> Any:
    """A parameter and its domain."""
    info = api.HParamInfo(name=name, type=api.DATA_TYPE_FLOAT64)
    if one.kind == "categorical":
        info.type = api.DATA_TYPE_STRING
    if one.values is not None:
        for text in one.values:
            value = info.domain_discrete.values.add()
            if one.kind == "categorical":
                value.string_value = text
            else:
                value.number_value = float(text)
    else:
        info.domain_interval.min_value = float(one.min or 0)
        info.domain_interval.max_value = float(one.max or 0)
    return info


def _hparams_summary(tag: str, content: Any) -> Any:
    from tensorboard.compat.proto import summary_pb2  # type: ignore[import-untyped]
    from tensorboard.plugins.hparams import metadata

    described = metadata.create_summary_metadata(content)
    value = {"tag": tag, "metadata": described, "tensor": metadata.NULL_TENSOR}
    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(**value)])


def _scalar(tag: str, value: float) -> Any:
    without_tensorflow()
    from tensorboard.compat.proto import summary_pb2

    return summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])


def _write(folder: Path, summaries: list[tuple[int, Any]]) -> None:
    without_tensorflow()
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.summary.writer import event_file_writer  # type: ignore[import-untyped]

    folder.mkdir(parents=True, exist_ok=True)
    writer = event_file_writer.EventFileWriter(str(folder), filename_suffix=f".{os.getpid()}.study")
    for step, one in summaries:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=one))
    writer.close()
