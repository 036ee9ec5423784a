"""Message classes of health.proto; written by tools/generate_grpc.py."""

from cenote.api.grpc.messages import make_classes

globals().update(
    make_classes(
        "c-rIQ$w*DiDap_)D9SI%7vf7VDoECY3Y8fu>2V2pfH}??sma+vsfDGf#U(-#T<pcEMP-@EsS=C|j2fIlFs{-@MlN9#4aEiddBv$ho?L9jC5a`a#b"
        "6D5MuvK*7U^Npq!$b_G%r0EtT6~`fRaBKFN%Z^Hy3-TpSPcXxSs$6h!gA@6z1vYF2E?n&&BQM9}*7}U=kAM;s<k_UE^U|n2pvka<M_I7Yg8F1v^1"
        "V39tLWp&+G9gdc>0xLCszOOi9FW}*RO5*s+Ki~$PNjRp"
    )
)
