"""A game in a window, at its natural speed, where there is a display."""

import contextlib
import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from steadyq.errors import UserError, one_line

SMALLEST = 360
"""Pixels of the shorter side of a window, at least: small pictures are shown several times as large."""
HEADLESS = ("dummy", "offscreen")
"""Drivers that SDL takes where there is nothing to draw on."""


def display() -> Any:
    """pygame with a display to draw on, or one line saying what is missing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it greets
            import pygame
    except ImportError:
        raise UserError("a window needs the extra: pip install 'steadyq[video]'") from None
    try:
        pygame.display.init()
        driver = pygame.display.get_driver()
    except pygame.error as error:
        raise UserError(f"--window needs a display ({one_line(error)}): --out game.mp4 films instead") from None
    if driver in HEADLESS:
        pygame.display.quit()
        raise UserError(f"--window needs a display (SDL draws on {driver!r}): --out game.mp4 films instead")
    return pygame


def show(pictures: Iterable[np.ndarray], fps: float, title: str) -> bool:
    """Show RGB pictures [height, width, 3] one after another; returns whether they were seen to the end.

    Closing the window, Escape or q ends it.
    """
    pygame = display()
    clock, screen, size = pygame.time.Clock(), None, (0, 0)
    try:
        for picture in pictures:
            if screen is None:
                height, width = picture.shape[:2]
                times = max(1, -(-SMALLEST // min(height, width)))
                size = (times * width, times * height)
                screen = pygame.display.set_mode(size)
                pygame.display.set_caption(title)
            drawn = pygame.surfarray.make_surface(picture.swapaxes(0, 1))
            screen.blit(pygame.transform.scale(drawn, size), (0, 0))
            pygame.display.flip()
            for event in pygame.event.get():
                if event.type == pygame.QUIT or (
                    event.type == pygame.KEYDOWN and event.key in (pygame.K_ESCAPE, pygame.K_q)
                ):
                    return False
            clock.tick(fps)
        return True
    finally:
        pygame.display.quit()
