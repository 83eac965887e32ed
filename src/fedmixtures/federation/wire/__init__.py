"""What travels: frames (`frames`), messages inside boxes (`message`), sealing and rosters."""
