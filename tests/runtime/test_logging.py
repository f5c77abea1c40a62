"""What a program hears that calls this package: the logger `marius_oac`, and nothing on its streams but progress."""

import logging

import marius_oac
from marius_oac.runtime import console
from tests.graphs import tiny_config


def test_a_program_that_calls_it_has_records_and_a_command_has_lines(graph, tmp_path, monkeypatch, capsys, caplog):
    logger = logging.getLogger("marius_oac")
    config = tiny_config(graph, "training.epochs=1", "training.optimizer.kind=sgd", "training.optimizer.beta1=0.5")
    said = "training.optimizer.beta1 does nothing here"
    marius_oac.train(config, tmp_path / "as a command")
    assert f"note: {said}" in (lines := capsys.readouterr().err) and "memory plan  " in lines
    with monkeypatch.context() as patch:  # as it is where no command has set it up
        patch.setattr(logger, "handlers", [])
        patch.setattr(logger, "propagate", True)
        caplog.clear()
        with caplog.at_level(logging.INFO, "marius_oac"):
            marius_oac.train(config, tmp_path / "as a library")
    assert "note: " not in capsys.readouterr().err
    assert [record.levelname for record in caplog.records if record.getMessage().startswith(said)] == ["WARNING"]
    plans = [record for record in caplog.records if record.getMessage().startswith("memory plan  ")]
    assert [record.levelname for record in plans] == ["INFO"]


def test_after_a_command_the_logger_is_as_it_was(monkeypatch):
    logger = logging.getLogger("marius_oac")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    before = logger.level
    with console.standard_error():
        with console.standard_error():
            assert len(logger.handlers) == 1 and not logger.propagate
        assert len(logger.handlers) == 1
    assert (logger.handlers, logger.level, logger.propagate) == ([], before, True)
