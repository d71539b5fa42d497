"""What a site does when the server asks. Its rows stay where they are."""

from fairfate.flower.app.settings import own_network
from fairfate.flower.app.site import SiteApp

app = SiteApp(own_network(__file__))  # net.py beside this file, if any, in place of the built-in model
