"""Federation between silos: rows stay where they are, sealed models travel.

`Node.handle(frame) -> frame` is the whole of a site and knows no engine. `frames`, `sealing`,
`message`, `gate`, `site` and `job` are its parts; the modules that begin with ``nvflare_`` let
NVIDIA FLARE carry the frames and need the extra ``fedmixtures[nvflare]``.
"""
