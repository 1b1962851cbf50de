import json, numpy as np
torch_version="2.13.0"
def fit_link(t):
    m=json.loads(t)["measurements"]; x=np.array([a["bytes"] for a in m]); y=np.array([a["us"] for a in m])
    A=np.stack([np.ones_like(x),x],1)/y[:,None]; s=np.linalg.lstsq(A,np.ones(len(x)),rcond=None)[0]
    return json.dumps({"startup_us":float(s[0]),"us_per_byte":float(s[1]),"residual":float(np.sqrt(np.mean((A@s-1)**2)))})
