"""A verdict reaches a thread that waits in a call that is not Gradweave's."""

import threading
import time

import gradweave
from gradweave.interrupting import Interruption


def test_a_thread_raises_the_verdict_once_its_call_has_returned():
    done, ready = [], threading.Event()

    def train():
        done.append(Interruption())
        try:
            ready.set()
            time.sleep(0.5)
            done.append("went on")
        except gradweave.RuntimeFailure as failure:
            done.append(str(failure))

    thread = threading.Thread(target=train)
    thread.start()
    ready.wait()
    done[0]("rank 1 was lost")
    thread.join()
    assert done[1:] == ["rank 1 was lost"]
