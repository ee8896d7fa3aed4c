# Part of the image's home, so that a test can see a new volume seeded from it.
